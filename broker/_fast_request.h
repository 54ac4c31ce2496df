/* What the two requests say that a transaction consists of, where they are common: a SEND_MESSAGE_V2 of a message, also a
 * half one, neither compressed nor sent again, and an END_TRANSACTION. The Python: broker/server/requests/plain_sends.py
 * and ends.py, which do anything else.
 */
#ifndef CHECKBACK_FAST_REQUEST_H
#define CHECKBACK_FAST_REQUEST_H

#include "_fast_record.h"

enum { END_FIELDS = 4 };
enum { LETTERS = 14, LETTER_B = 1, LETTER_E = 4, LETTER_G = 6, LETTER_H = 7, LETTER_I = 8, TEXT_MAX = 8191 };

/* By letter a ... n: how many digits a number has at most that always fits, or one of these. */
enum { ANY_TEXT = 0, ANY = -1, SYS_FLAG = -2, OPTIONAL_ZERO = -3 };
static const int letter_kinds[LETTERS] = {ANY_TEXT, ANY_TEXT, ANY_TEXT, 9, 9, SYS_FLAG, 18, 9, ANY_TEXT, OPTIONAL_ZERO, ANY,
                                          9, ANY, ANY};
static PyObject *n_letters[LETTERS];
static PyObject *n_end_fields[END_FIELDS];
static const char *const end_fields[END_FIELDS] = {
    "commitLogOffset", "tranStateTableOffset", "producerGroup", "commitOrRollback"};

static const char request_message_doc[] =
    "request_message(extension fields, names that are not common, properties that are added)\n\n"
    "-> (producer group, topic, queue id, born timestamp in ms, flag, unique key, properties as they are stored), or\n"
    "None. Of a half message, for its engine to add what is its own.";

/* A number in ASCII digits, at most so many; 1, or 0 for anything else. */
static int digits_of(Text text, int most, long long *number)
{
    *number = 0;
    if (text.size < 1 || text.size > most)
        return 0;
    for (Py_ssize_t at = 0; at < text.size; at++) {
        if (text.text[at] < '0' || text.text[at] > '9')
            return 0;
        *number = 10 * *number + (text.text[at] - '0');
    }
    return 1;
}

/* The fields of the request, borrowed, and the numbers among them: 1, or 0 when the Python should look at it. */
static int read_letters(PyObject *ext, PyObject **fields, long long *numbers)
{
    for (int at = 0; at < LETTERS; at++) {
        int kind = letter_kinds[at], is_optional = kind == ANY || kind == OPTIONAL_ZERO || at == 11;
        Text text;
        fields[at] = PyDict_GetItemWithError(ext, n_letters[at]);
        if (!fields[at]) {
            if (PyErr_Occurred() || !is_optional)
                return 0;
            continue;
        }
        if (!PyUnicode_CheckExact(fields[at]) || !text_of(fields[at], &text)
            || (kind > 0 && !digits_of(text, kind, numbers + at))
            || (kind < ANY && (text.size != 1 || (text.text[0] != '0' && (kind != SYS_FLAG || text.text[0] != '4')))))
            return 0;
    }
    return 1;
}

/* One property into the dict: 1, 0 when the Python should look at it, -1 with an error. */
static int put_property(PyObject *found, PyObject *refused, const char *name, Py_ssize_t name_size, const char *value,
                        Py_ssize_t value_size)
{
    PyObject *key = PyUnicode_FromStringAndSize(name, name_size);
    PyObject *text = key ? PyUnicode_FromStringAndSize(value, value_size) : NULL;
    int done = text ? PySet_Contains(refused, key) : -1;
    done = done < 0 ? -1 : done ? 0 : PyDict_SetItem(found, key, text) < 0 ? -1 : 1;
    Py_XDECREF(key);
    Py_XDECREF(text);
    return done;
}

/* `decode_text` of broker/format/properties.py into a dict, where each can be stored: the same numbers. */
static int split_properties(PyObject *found, PyObject *refused, Text texts)
{
    const char *at = texts.text, *stop = at + texts.size;
    int done = 1;
    while (done > 0 && at < stop) {
        const char *mark = memchr(at, 2, (size_t)(stop - at)), *end = mark ? mark : stop;
        const char *value = memchr(at, 1, (size_t)(end - at));
        if (value && value > at && value + 1 < end)
            done = memchr(value + 1, 1, (size_t)(end - value - 1)) ? 0
                : put_property(found, refused, at, value - at, value + 1, end - value - 1);
        at = end + 1;
    }
    return done;
}

/* The properties as they are stored, the unique key first, or NULL. */
static PyObject *stored_texts(PyObject *found, PyObject *added, PyObject *unique_key)
{
    PyObject *stored = PyDict_New();
    if (stored && (PyDict_SetItem(stored, n_UNIQ_KEY, unique_key) < 0 || PyDict_Update(stored, found) < 0
                   || PyDict_Update(stored, added) < 0))
        Py_CLEAR(stored);
    return stored;
}

static PyObject *fast_request_message(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    PyObject *fields[LETTERS], *stored = NULL, *unique_key;
    long long numbers[LETTERS] = {0};
    Text texts, topic;
    if (count != 3 || !PyDict_CheckExact(args[0]) || !PyAnySet_Check(args[1]) || !PyDict_CheckExact(args[2]))
        return PyErr_Format(PyExc_TypeError, "request_message takes a dict, a set and a dict");
    if (!read_letters(args[0], fields, numbers))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    if (!ascii_of(fields[LETTER_B], &topic) || !topic.size || topic.size > TOPIC_MAX || !text_of(fields[LETTER_I], &texts)
        || texts.size > TEXT_MAX)
        Py_RETURN_NONE;
    PyObject *found = PyDict_New();
    int done = found ? split_properties(found, args[1], texts) : -1;
    unique_key = done > 0 ? PyDict_GetItemWithError(found, n_UNIQ_KEY) : NULL;
    if (unique_key)
        stored = stored_texts(found, args[2], unique_key);
    PyObject *answer = stored
        ? Py_BuildValue("(OOLLLOO)", fields[0], fields[LETTER_B], numbers[LETTER_E], numbers[LETTER_G], numbers[LETTER_H],
                        unique_key, stored)
        : PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    Py_XDECREF(stored);
    Py_XDECREF(found);
    return answer;
}

static const char request_end_doc[] =
    "request_end(extension fields)\n\n"
    "-> (CommitLog offset, slot, producer group, decision: 8 for a commit or 12 for a rollback), or None.";

static PyObject *fast_request_end(PyObject *module, PyObject *ext)
{
    (void)module;
    PyObject *fields[END_FIELDS];
    long long offset, slot, decision;
    if (!PyDict_CheckExact(ext))
        return PyErr_Format(PyExc_TypeError, "request_end takes a dict");
    Text texts[END_FIELDS];
    for (int at = 0; at < END_FIELDS; at++) {
        fields[at] = PyDict_GetItemWithError(ext, n_end_fields[at]);
        if (!fields[at] || !PyUnicode_CheckExact(fields[at]) || !text_of(fields[at], texts + at))
            return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    if (!digits_of(texts[0], 18, &offset) || !digits_of(texts[1], 18, &slot) || !digits_of(texts[3], 9, &decision)
        || (decision != TYPE_COMMIT && decision != TYPE_ROLLBACK))
        Py_RETURN_NONE;
    return Py_BuildValue("(LLOi)", offset, slot, fields[2], (int)decision);
}

#endif
