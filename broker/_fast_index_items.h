/* What verification expects of records: the items of the index; and whether its chains agree with those of a file.
 *
 * The reference is recovery/verify/index_items.py: expected_items; recovery/verify/index_files.py: Chains.
 */
#ifndef CHECKBACK_FAST_INDEX_ITEMS_H
#define CHECKBACK_FAST_INDEX_ITEMS_H

#include "_fast_arrays.h"

enum { RULE_V3 = 3, RULE_V5 = 5, RULE_V54 = 54 };

#define ITEM_WORDS 3 /* CommitLog offset, hash, store time */
#define WIDE_WORDS 5 /* item, record, start, length, whether of tags */

/* Where a property of each record lies; its hash goes on from that of what stands before it. */
struct key_column { const int64_t *starts, *lengths; const int32_t *prefixes; };

struct index_call {
    const uint8_t *data;
    int64_t size, count, rule;
    const int64_t *offsets, *store_ms;
    const uint8_t *indexed;
    struct key_column unique, keys, tags;
    int64_t *items, *wide;
    int64_t room, wide_room, item_count, wide_count;
};

/* One item; counted, but not stored, where there is no room. */
static void put_item(struct index_call *call, int64_t row, int64_t start, int64_t length, const struct key_column *of)
{
    uint32_t hash = (uint32_t)of->prefixes[row], seen = 0;
    const uint8_t *at = call->data + start, *end = at + length;
    for (; at < end; at++) {
        hash = hash * 31u + *at;
        seen |= *at;
    }
    int64_t value = (int32_t)hash;
    if (value == INT32_MIN)
        value = 0;
    else if (call->rule != RULE_V3 && value < 0)
        value = -value;
    if (call->item_count < call->room) {
        int64_t *item = call->items + call->item_count * ITEM_WORDS;
        item[0] = call->offsets[row], item[1] = value, item[2] = call->store_ms[row];
    }
    if (seen & 0x80) { /* not ASCII: hashed again by the Python */
        if (call->wide_count < call->wide_room) {
            int64_t *wide = call->wide + call->wide_count * WIDE_WORDS;
            wide[0] = call->item_count, wide[1] = row, wide[2] = start, wide[3] = length;
            wide[4] = of == &call->tags;
        }
        call->wide_count++;
    }
    call->item_count++;
}

/* The property of a record as one item, or as one for each part between spaces; 0 where it lies outside. */
static int put_keys(struct index_call *call, int64_t row, const struct key_column *of, int in_parts)
{
    int64_t start = of->starts[row], length = of->lengths[row], stop;
    if (!length)
        return 1;
    if (!span_fits(start, length, call->size))
        return 0;
    for (stop = start + length; start < stop;) {
        const uint8_t *space = in_parts ? memchr(call->data + start, ' ', (size_t)(stop - start)) : NULL;
        int64_t end = space ? space - call->data : stop;
        if (end > start)
            put_item(call, row, start, end - start, of);
        start = end + 1;
    }
    return 1;
}

static int make_items(struct index_call *call)
{
    for (int64_t row = 0; row < call->count; row++) {
        if (!call->indexed[row])
            continue;
        if (call->rule != RULE_V3 && !put_keys(call, row, &call->unique, 0))
            return 0;
        if (!put_keys(call, row, &call->keys, 1))
            return 0;
        if (call->rule == RULE_V54 && !put_keys(call, row, &call->tags, 0))
            return 0;
    }
    return 1;
}

static const char index_items_doc[] =
    "index_items(data, rule, offsets, store_ms, indexed, prefixes, tag_prefixes, unique_starts, unique_lengths,\n"
    "            key_starts, key_lengths, tag_starts, tag_lengths, items, wide) -> (items, wide)\n\n"
    "The items that the index holds for these records by the rule 3, 5 or 54: three int64 each into `items`, and five\n"
    "for each whose key is not ASCII into `wide`. Returns how many there are; what has no room is only counted.";

static PyObject *fast_index_items(PyObject *module, PyObject *args)
{
    (void)module;
    enum { DATA, OFFSETS, STORE_MS, INDEXED, PREFIXES, TAG_PREFIXES, UNIQUE, KEYS = UNIQUE + 2, TAGS = KEYS + 2,
           ITEMS = TAGS + 2, WIDE, BUFFERS };
    static const struct { const char *name; int size; } shape[BUFFERS] = {
        {"data", 1}, {"offsets", 8}, {"store_ms", 8}, {"indexed", 1}, {"prefixes", 4}, {"tag_prefixes", 4},
        {"unique_starts", 8}, {"unique_lengths", 8}, {"key_starts", 8}, {"key_lengths", 8}, {"tag_starts", 8},
        {"tag_lengths", 8}, {"items", 8}, {"wide", 8}};
    Py_buffer b[BUFFERS];
    struct index_call call = {0};
    long long rule;
    if (!PyArg_ParseTuple(args, "y*Ly*y*y*y*y*y*y*y*y*y*y*w*w*:index_items", &b[0], &rule, &b[1], &b[2], &b[3], &b[4],
                          &b[5], &b[6], &b[7], &b[8], &b[9], &b[10], &b[11], &b[12], &b[13]))
        return NULL;
    PyObject *result = NULL;
    call.count = b[OFFSETS].len / 8;
    for (int number = OFFSETS; number < ITEMS; number++)
        if (!array_holds(&b[number], shape[number].name, call.count, shape[number].size))
            goto done;
    call.room = b[ITEMS].len / 8 / ITEM_WORDS, call.wide_room = b[WIDE].len / 8 / WIDE_WORDS;
    if (!array_holds(&b[ITEMS], "items", call.room * ITEM_WORDS, 8)
        || !array_holds(&b[WIDE], "wide", call.wide_room * WIDE_WORDS, 8))
        goto done;
    if (rule != RULE_V3 && rule != RULE_V5 && rule != RULE_V54) {
        PyErr_Format(PyExc_ValueError, "the rule must be 3, 5 or 54, not %lld", rule);
        goto done;
    }
    call.data = b[DATA].buf, call.size = b[DATA].len, call.rule = rule;
    call.offsets = b[OFFSETS].buf, call.store_ms = b[STORE_MS].buf, call.indexed = b[INDEXED].buf;
    call.unique = (struct key_column){b[UNIQUE].buf, b[UNIQUE + 1].buf, b[PREFIXES].buf};
    call.keys = (struct key_column){b[KEYS].buf, b[KEYS + 1].buf, b[PREFIXES].buf};
    call.tags = (struct key_column){b[TAGS].buf, b[TAGS + 1].buf, b[TAG_PREFIXES].buf};
    call.items = b[ITEMS].buf, call.wide = b[WIDE].buf;
    int fits;
    Py_BEGIN_ALLOW_THREADS
    fits = make_items(&call);
    Py_END_ALLOW_THREADS
    if (fits)
        result = Py_BuildValue("(LL)", (long long)call.item_count, (long long)call.wide_count);
    else
        PyErr_SetString(PyExc_ValueError, "a key lies outside the data");
done:
    arrays_release(b, BUFFERS);
    return result;
}

/* ---- chains ---- */

#define STORED_ITEM_BYTES 20 /* hash, CommitLog offset, seconds, number of the item before it in its slot */
#define ITEMS_AHEAD 8        /* slots lie anywhere in 20 MB: they are fetched before they are needed */

static int64_t chain_slot(const uint8_t *item, int64_t slots)
{
    int64_t hash = (int32_t)big32(item);
    return (hash < 0 ? -hash : hash) % slots;
}

static void follow_chains(const uint8_t *items, int64_t count, int64_t first, int32_t *newest, int64_t slots, uint8_t *wrong)
{
    for (int64_t number = 0; number < count; number++, items += STORED_ITEM_BYTES) {
        if (number + ITEMS_AHEAD < count)
            __builtin_prefetch(newest + chain_slot(items + ITEMS_AHEAD * STORED_ITEM_BYTES, slots), 1);
        int32_t *slot = newest + chain_slot(items, slots);
        wrong[number] = *slot != (int32_t)big32(items + 16);
        *slot = (int32_t)(first + number);
    }
}

static const char index_chains_doc[] =
    "index_chains(items, first, newest, wrong) -> None\n\n"
    "Follow the chains through these items of an index file, of which the first has this number. `newest`, int32, has the\n"
    "newest item of each slot, before and after; `wrong` gets 1 for an item that names another one before it, else 0.";

static PyObject *fast_index_chains(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer b[3];
    long long first;
    if (!PyArg_ParseTuple(args, "y*Lw*w*:index_chains", &b[0], &first, &b[1], &b[2]))
        return NULL;
    int64_t count = b[0].len / STORED_ITEM_BYTES, slots = b[1].len / 4;
    int fits = b[0].len % STORED_ITEM_BYTES == 0 && (slots || !count) && first >= 0 && first <= INT32_MAX - count;
    if (!fits)
        PyErr_SetString(PyExc_ValueError, "items must be whole, with slots for them and numbers of 32 bits");
    fits = fits && array_holds(&b[1], "newest", slots, 4) && array_holds(&b[2], "wrong", count, 1);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        follow_chains(b[0].buf, count, first, b[1].buf, slots, b[2].buf);
        Py_END_ALLOW_THREADS
    }
    arrays_release(b, 3);
    return fits ? Py_NewRef(Py_None) : NULL;
}

#endif
