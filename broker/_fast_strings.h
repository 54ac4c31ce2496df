/* Strings that lie in a buffer, data[start : start + length] each: numbers for those that recur, and Java's hashes.
 *
 * The reference is recovery/scan/strings.py: StringViews.codes and java_hashes_joined.
 */
#ifndef CHECKBACK_FAST_STRINGS_H
#define CHECKBACK_FAST_STRINGS_H

#include <stdlib.h>
#include <string.h>

#include "_fast_arrays.h"

struct strings {
    const uint8_t *data;
    int64_t size, count;
    const int64_t *starts, *lengths;
};

/* The distinct strings so far: which row had each first, and a hash table of their numbers. */
struct distinct {
    int64_t *first;
    uint32_t *hashes;
    int32_t *table; /* a number plus one, 0 where nothing is */
    int64_t count, room;
};

enum { CODES_DONE, CODES_OUTSIDE, CODES_NO_MEMORY };

static uint32_t string_mix(const uint8_t *at, int64_t length)
{
    uint64_t hash = 0x9E3779B97F4A7C15u ^ (uint64_t)length;
    for (; length >= 8; at += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        hash = (hash ^ word) * 0xFF51AFD7ED558CCDu;
        hash ^= hash >> 32;
    }
    for (; length; at++, length--)
        hash = (hash ^ *at) * 0x100000001B3u;
    return (uint32_t)(hash ^ hash >> 29);
}

/* Twice the room; 0 where there is no memory. The table has two places for each string. */
static int distinct_grow(struct distinct *held)
{
    int64_t room = held->room ? 2 * held->room : 64;
    int64_t *first = realloc(held->first, (size_t)room * sizeof *first);
    if (first)
        held->first = first;
    uint32_t *hashes = realloc(held->hashes, (size_t)room * sizeof *hashes);
    if (hashes)
        held->hashes = hashes;
    int32_t *table = calloc((size_t)room * 2, sizeof *table);
    if (!first || !hashes || !table) {
        free(table);
        return 0;
    }
    free(held->table);
    held->table = table;
    held->room = room;
    for (int64_t number = 0; number < held->count; number++) {
        uint64_t place = held->hashes[number];
        while (table[place & (uint64_t)(2 * room - 1)])
            place++;
        table[place & (uint64_t)(2 * room - 1)] = (int32_t)number + 1;
    }
    return 1;
}

static void distinct_free(struct distinct *held)
{
    free(held->first);
    free(held->hashes);
    free(held->table);
}

/* Number each string in the order in which it appears first. */
static int number_strings(const struct strings *all, struct distinct *held, int32_t *codes)
{
    int64_t before = -1, before_length = -1;
    for (int64_t row = 0; row < all->count; row++) {
        int64_t start = all->starts[row], length = all->lengths[row];
        if (!span_fits(start, length, all->size))
            return CODES_OUTSIDE;
        const uint8_t *text = all->data + start;
        if (length == before_length && !memcmp(text, all->data + before, (size_t)length)) {
            codes[row] = codes[row - 1];
            continue;
        }
        before = start, before_length = length;
        if (held->count == held->room && !distinct_grow(held))
            return CODES_NO_MEMORY;
        uint32_t hash = string_mix(text, length);
        uint64_t mask = (uint64_t)(2 * held->room - 1), place = hash & mask;
        int32_t number;
        for (; (number = held->table[place]); place = (place + 1) & mask) {
            int64_t other = held->first[number - 1];
            int64_t other_length = all->lengths[other], other_start = all->starts[other];
            if (held->hashes[number - 1] == hash && other_length == length
                && span_fits(other_start, length, all->size)
                && !memcmp(all->data + other_start, text, (size_t)length))
                break;
        }
        if (!number) {
            held->first[held->count] = row;
            held->hashes[held->count] = hash;
            number = held->table[place] = (int32_t)++held->count;
        }
        codes[row] = number - 1;
    }
    return CODES_DONE;
}

static PyObject *texts_of(const struct strings *all, const struct distinct *held)
{
    PyObject *texts = PyList_New(held->count);
    for (int64_t number = 0; texts && number < held->count; number++) {
        int64_t start = all->starts[held->first[number]], length = all->lengths[held->first[number]];
        PyObject *text = span_fits(start, length, all->size)
                             ? PyBytes_FromStringAndSize((const char *)all->data + start, length)
                             : PyErr_Format(PyExc_ValueError, "the strings changed meanwhile");
        if (!text) {
            Py_DECREF(texts);
            return NULL;
        }
        PyList_SetItem(texts, number, text);
    }
    return texts;
}

static const char string_codes_doc[] =
    "string_codes(data, starts, lengths, codes) -> texts\n\n"
    "Write the number of each data[start : start + length] into the int32 `codes`, and return the distinct ones in\n"
    "the order in which they appear.";

static PyObject *fast_string_codes(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer buffer[4];
    if (!PyArg_ParseTuple(args, "y*y*y*w*:string_codes", &buffer[0], &buffer[1], &buffer[2], &buffer[3]))
        return NULL;
    PyObject *texts = NULL;
    struct strings all = {buffer[0].buf, buffer[0].len, buffer[1].len / 8, buffer[1].buf, buffer[2].buf};
    struct distinct held = {0};
    if (!array_holds(&buffer[1], "starts", all.count, 8) || !array_holds(&buffer[2], "lengths", all.count, 8)
        || !array_holds(&buffer[3], "codes", all.count, 4))
        goto done;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = number_strings(&all, &held, buffer[3].buf);
    Py_END_ALLOW_THREADS
    if (status == CODES_OUTSIDE)
        PyErr_SetString(PyExc_ValueError, "a string lies outside the data");
    else if (status == CODES_NO_MEMORY)
        PyErr_NoMemory();
    else
        texts = texts_of(&all, &held);
done:
    distinct_free(&held);
    arrays_release(buffer, 4);
    return texts;
}

/* Java's hash of each string, going on from a prefix's; strings that are not ASCII are marked, and counted. -1: one
 * lies outside. */
static int64_t hash_strings(const struct strings *all, const int32_t *prefixes, int32_t *hashes, uint8_t *wide)
{
    int64_t marked = 0;
    for (int64_t row = 0; row < all->count; row++) {
        int64_t start = all->starts[row], length = all->lengths[row];
        if (!span_fits(start, length, all->size))
            return -1;
        uint32_t hash = prefixes ? (uint32_t)prefixes[row] : 0, seen = 0;
        const uint8_t *at = all->data + start;
        for (; length >= 4; at += 4, length -= 4) {
            hash = hash * 923521u + at[0] * 29791u + at[1] * 961u + at[2] * 31u + at[3];
            seen |= (uint32_t)at[0] | at[1] | at[2] | at[3];
        }
        for (; length; at++, length--) {
            hash = hash * 31u + *at;
            seen |= *at;
        }
        hashes[row] = (int32_t)hash;
        wide[row] = seen >> 7 & 1;
        marked += wide[row];
    }
    return marked;
}

static const char java_hashes_doc[] =
    "java_hashes(data, starts, lengths, prefixes, hashes, wide) -> count\n\n"
    "Java's hash of each data[start : start + length] behind a text whose hash is its int32 prefix (b'': none), into\n"
    "the int32 `hashes`. Strings that are not ASCII are only marked in `wide`, and counted.";

static PyObject *fast_java_hashes(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer buffer[6];
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*w*:java_hashes", &buffer[0], &buffer[1], &buffer[2], &buffer[3], &buffer[4],
                          &buffer[5]))
        return NULL;
    PyObject *result = NULL;
    struct strings all = {buffer[0].buf, buffer[0].len, buffer[1].len / 8, buffer[1].buf, buffer[2].buf};
    int has_prefixes = buffer[3].len > 0;
    if (!array_holds(&buffer[1], "starts", all.count, 8) || !array_holds(&buffer[2], "lengths", all.count, 8)
        || (has_prefixes && !array_holds(&buffer[3], "prefixes", all.count, 4))
        || !array_holds(&buffer[4], "hashes", all.count, 4) || !array_holds(&buffer[5], "wide", all.count, 1))
        goto done;
    int64_t marked;
    Py_BEGIN_ALLOW_THREADS
    marked = hash_strings(&all, has_prefixes ? buffer[3].buf : NULL, buffer[4].buf, buffer[5].buf);
    Py_END_ALLOW_THREADS
    if (marked < 0)
        PyErr_SetString(PyExc_ValueError, "a string lies outside the data");
    else
        result = PyLong_FromLongLong(marked);
done:
    arrays_release(buffer, 6);
    return result;
}

#endif
