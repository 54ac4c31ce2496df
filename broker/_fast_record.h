/* Records made of messages: `draft` and `index_codes` of broker/store/write/pending_record.py, for the common case.
 * What is not ASCII where Java hashes it, and what is too long, the Python does.
 */
#ifndef CHECKBACK_FAST_RECORD_H
#define CHECKBACK_FAST_RECORD_H

#include "_fast_append.h"

enum { TOPIC_MAX = 127, PROPERTIES_MAX = 32767 };

static PyObject *n_TAGS, *n_KEYS, *n_UNIQ_KEY, *n_TRAN_MSG, *n_PGROUP, *n_true, *n_blank, *n_address, *n_port,
    *n_copy;
static const char crc_item[] = "__CRC32#\x01" "0000000000\x02";

typedef struct {
    const char *text;
    Py_ssize_t size;
} Text;

/* A str as UTF-8 that lives as long as the str; 1, or 0 with no error set for anything else. */
static int text_of(PyObject *object, Text *text)
{
    text->text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &text->size) : NULL;
    if (!text->text)
        PyErr_Clear();
    return text->text != NULL;
}

static int ascii_of(PyObject *object, Text *text)
{
    return text_of(object, text) && PyUnicode_GetLength(object) == text->size;
}

/* ---- what the index holds ---- */

static int add_codes(uint32_t front, Text keys, uint32_t *codes, int count)
{
    const char *at = keys.text, *stop = at + keys.size;
    while (at < stop && count <= CODES_MAX) {
        const char *blank = memchr(at, ' ', (size_t)(stop - at)), *end = blank ? blank : stop;
        if (end > at) {
            if (count < CODES_MAX)
                codes[count] = java_absolute(java_hash(front, at, end - at));
            count++;
        }
        at = end + 1;
    }
    return count;
}

/* Into an array of CODES_MAX; more than that when there was no room for all. */
static int list_codes(Text topic, Text unique, Text keys, uint32_t *codes)
{
    uint32_t front = java_hash(java_hash(0, topic.text, topic.size), "#", 1);
    int count = 0;
    if (unique.size)
        codes[count++] = java_absolute(java_hash(front, unique.text, unique.size));
    return add_codes(front, keys, codes, count);
}

static PyObject *codes_of(Text topic, Text unique, Text keys)
{
    uint32_t codes[CODES_MAX];
    int count = list_codes(topic, unique, keys, codes);
    if (count > CODES_MAX)
        Py_RETURN_NONE;
    PyObject *tuple = PyTuple_New(count);
    for (int at = 0; tuple && at < count; at++)
        PyTuple_SetItem(tuple, at, PyLong_FromUnsignedLong(codes[at]));
    return tuple;
}

/* index_codes(topic, unique key or None, keys or None) -> tuple, or None */
static PyObject *fast_index_codes(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    Text topic, unique = {"", 0}, keys = {"", 0};
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "index_codes takes 3 arguments, not %zd", count);
    if (!ascii_of(args[0], &topic) || (args[1] != Py_None && !ascii_of(args[1], &unique))
        || (args[2] != Py_None && !ascii_of(args[2], &keys)))
        Py_RETURN_NONE;
    return codes_of(topic, unique, keys);
}

/* ---- who sent it ---- */

/* `Origin` of broker/store/write/compose.py, but for the time. */
typedef struct {
    uint8_t born[8], store[8]; /* an address and a port */
    int32_t flag, sys_flag, reconsume_times;
} Sender;

static const Sender local_sender = {{127, 0, 0, 1, 0, 0, 0x2A, 0x9F}, {127, 0, 0, 1, 0, 0, 0x2A, 0x9F}, 0, 0, 0};

/* A number of 32 bits; 1, or 0 for anything else. */
static int int32_of(PyObject *object, int32_t *number)
{
    long long value = PyLong_CheckExact(object) ? PyLong_AsLongLong(object) : 1LL << 40;
    if (PyErr_Occurred())
        PyErr_Clear();
    *number = (int32_t)value;
    return value == *number;
}

/* An address of IPv4; 1, or 0 for anything else. */
static int host_of(PyObject *host, uint8_t *at)
{
    int32_t number = 0;
    PyObject *address = PyObject_GetAttr(host, n_address), *port = address ? PyObject_GetAttr(host, n_port) : NULL;
    int fits = port && PyBytes_CheckExact(address) && PyBytes_Size(address) == 4 && int32_of(port, &number);
    if (fits) {
        memcpy(at, PyBytes_AsString(address), 4);
        put32(at + 4, (uint32_t)number);
    }
    Py_XDECREF(address);
    Py_XDECREF(port);
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
    return fits;
}

/* An Origin, or None for this process: 1, 0 when the Python should look at it, -1 with an error. */
static int read_sender(PyObject *origin, Sender *sender)
{
    *sender = local_sender;
    if (origin == Py_None)
        return 1;
    int fits = PyTuple_Check(origin) && PyTuple_Size(origin) == 6 && host_of(PyTuple_GetItem(origin, 1), sender->born)
        && host_of(PyTuple_GetItem(origin, 2), sender->store) && int32_of(PyTuple_GetItem(origin, 3), &sender->flag)
        && int32_of(PyTuple_GetItem(origin, 4), &sender->sys_flag)
        && int32_of(PyTuple_GetItem(origin, 5), &sender->reconsume_times);
    return PyErr_Occurred() ? -1 : fits;
}

/* ---- a record ---- */

typedef struct {
    Text tags, group, unique, keys;
    Py_ssize_t size; /* of all of them in a record, without the CRC */
} Properties;

static int is_name(Text name, const char *wanted, Py_ssize_t size)
{
    return name.size == size && !memcmp(name.text, wanted, (size_t)size);
}

/* 1, or 0 when the Python should do it. */
static int read_properties(PyObject *dict, Properties *read)
{
    PyObject *name_object, *value_object;
    Py_ssize_t position = 0;
    memset(read, 0, sizeof *read);
    read->tags.text = read->group.text = read->unique.text = read->keys.text = "";
    while (PyDict_Next(dict, &position, &name_object, &value_object)) {
        Text name, value, *hashed = NULL;
        if (!text_of(name_object, &name) || !text_of(value_object, &value))
            return 0;
        read->size += name.size + value.size + 2;
        if (is_name(name, "TAGS", 4))
            hashed = &read->tags;
        else if (is_name(name, "PGROUP", 6))
            hashed = &read->group;
        else if (is_name(name, "UNIQ_KEY", 8))
            hashed = &read->unique;
        else if (is_name(name, "KEYS", 4))
            hashed = &read->keys;
        else if (is_name(name, "DELAY", 5) || is_name(name, "CHECKBACK_DELAY", 15))
            return 0;
        if (hashed) {
            *hashed = value;
            if (PyUnicode_GetLength(value_object) != value.size)
                return 0;
        }
    }
    return read->size + CRC_ITEM <= PROPERTIES_MAX;
}

/* Into so many bytes; 0, or -1 when the dict is another one by now. */
static int write_properties(uint8_t *at, Py_ssize_t room, PyObject *dict)
{
    PyObject *name_object, *value_object;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &name_object, &value_object)) {
        Text name, value;
        if (!text_of(name_object, &name) || !text_of(value_object, &value) || name.size + value.size + 2 > room)
            return -1;
        room -= name.size + value.size + 2;
        memcpy(at, name.text, (size_t)name.size);
        at += name.size;
        *at++ = 1;
        memcpy(at, value.text, (size_t)value.size);
        at += value.size;
        *at++ = 2;
    }
    memcpy(at, crc_item, CRC_ITEM);
    return room ? -1 : 0;
}

static void write_head(
    uint8_t *at, Py_ssize_t size, PyObject *body, long long queue_id, long long born_ms, int kind, const Sender *sender)
{
    Py_ssize_t body_size = PyBytes_Size(body);
    memset(at, 0, BODY_AT);
    put32(at, (uint32_t)size);
    put32(at + 4, 0xDAA320A7u);
    put32(at + BODY_CRC_AT, crc32_from(0, (const uint8_t *)PyBytes_AsString(body), (size_t)body_size) & 0x7FFFFFFF);
    put32(at + QUEUE_ID_AT, (uint32_t)queue_id);
    put32(at + FLAG_AT, (uint32_t)sender->flag);
    put32(at + SYS_FLAG_AT, ((uint32_t)sender->sys_flag & ~0xCu) | (uint32_t)kind);
    put64(at + BORN_AT, (uint64_t)born_ms);
    memcpy(at + BORN_AT + 8, sender->born, sizeof sender->born);
    memcpy(at + STORE_TIME_AT + 8, sender->store, sizeof sender->store);
    put32(at + RECONSUME_AT, (uint32_t)sender->reconsume_times);
    put32(at + BODY_LENGTH_AT, (uint32_t)body_size);
}

static PyObject *record_bytes(Text topic, PyObject *body, PyObject *properties, Py_ssize_t texts, long long queue_id,
                              long long born_ms, int kind, const Sender *sender)
{
    Py_ssize_t body_size = PyBytes_Size(body), size = BODY_AT + body_size + 1 + topic.size + 2 + texts + CRC_ITEM;
    PyObject *raw = PyBytes_FromStringAndSize(NULL, size);
    if (!raw)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(raw);
    write_head(at, size, body, queue_id, born_ms, kind, sender);
    at += BODY_AT;
    memcpy(at, PyBytes_AsString(body), (size_t)body_size);
    at += body_size;
    *at++ = (uint8_t)topic.size;
    memcpy(at, topic.text, (size_t)topic.size);
    at += topic.size;
    put16(at, (uint16_t)(texts + CRC_ITEM));
    if (write_properties(at + 2, texts, properties) < 0) {
        Py_CLEAR(raw);
        PyErr_SetString(PyExc_RuntimeError, "the properties of a message changed while its record was made");
    }
    return raw;
}

/* Set a field that the next line gives; steals the value. 0, or -1 with an error. */
static int set_field(PyObject *record, PyObject *name, PyObject *value)
{
    int failed = !value || PyObject_SetAttr(record, name, value) < 0;
    Py_XDECREF(value);
    return failed ? -1 : 0;
}

/* draft(PendingRecord, topic, body, properties, queue_id, born_ms, kind, index codes or None, origin or None)
 *
 * -> PendingRecord, or None
 */
static PyObject *fast_draft(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    Text topic;
    Properties read;
    Sender sender;
    if (count != 9 || !PyType_Check(args[0]) || !PyDict_Check(args[3]) || !PyLong_Check(args[6]))
        return PyErr_Format(PyExc_TypeError, "draft takes a class and 8 arguments");
    long long queue_id = PyLong_AsLongLong(args[4]), born_ms = PyLong_AsLongLong(args[5]);
    int kind = (int)PyLong_AsLong(args[6]), known = PyErr_Occurred() ? -1 : read_sender(args[8], &sender);
    if (known < 0)
        return NULL;
    if (!known || !ascii_of(args[1], &topic) || topic.size > TOPIC_MAX || !PyBytes_CheckExact(args[2])
        || PyBytes_Size(args[2]) > (1 << 30) || queue_id < 0 || queue_id > INT32_MAX || kind == TYPE_ROLLBACK
        || !read_properties(args[3], &read))
        Py_RETURN_NONE;
    PyObject *codes = args[7] == Py_None ? codes_of(topic, read.unique, read.keys) : Py_NewRef(args[7]);
    if (!codes || codes == Py_None)
        return codes;
    newfunc make = (newfunc)PyType_GetSlot((PyTypeObject *)args[0], Py_tp_new);
    PyObject *none = PyTuple_New(0), *record = none ? make((PyTypeObject *)args[0], none, NULL) : NULL;
    Py_XDECREF(none);
    int failed = !record
        || set_field(record, n_raw,
                     record_bytes(topic, args[2], args[3], read.size, queue_id, born_ms, kind, &sender)) < 0
        || PyObject_SetAttr(record, n_topic, args[1]) < 0 || PyObject_SetAttr(record, n_queue_id, args[4]) < 0
        || PyObject_SetAttr(record, n_kind, args[6]) < 0
        || set_field(record, n_tags_code, PyLong_FromLong((int32_t)java_hash(0, read.tags.text, read.tags.size))) < 0
        || set_field(record, n_group_hash, PyLong_FromLong((int32_t)java_hash(0, read.group.text, read.group.size))) < 0
        || PyObject_SetAttr(record, n_index_codes, codes) < 0
        || set_field(record, n_prepared_offset, PyLong_FromLong(0)) < 0
        || set_field(record, n_slot, PyLong_FromLong(-1)) < 0 || set_field(record, n_delay_queue, PyLong_FromLong(-1)) < 0
        || PyObject_SetAttr(record, n_target, Py_None) < 0 || set_field(record, n_ended, PyTuple_New(0)) < 0;
    Py_DECREF(codes);
    if (failed)
        Py_CLEAR(record);
    return record;
}

/* Whether a text can be stored in a property as it is. */
static int is_storable(PyObject *object)
{
    Text text;
    return PyUnicode_CheckExact(object) && text_of(object, &text) && text.size && !memchr(text.text, 1, (size_t)text.size)
        && !memchr(text.text, 2, (size_t)text.size);
}

/* More properties, each storable: 1, 0 when the Python should look at them, -1 with an error. */
static int add_properties(PyObject *stored, PyObject *extra)
{
    PyObject *name, *value;
    Py_ssize_t position = 0;
    if (!PyDict_CheckExact(extra))
        return 0;
    while (PyDict_Next(extra, &position, &name, &value)) {
        if (!is_storable(name) || !is_storable(value))
            return 0;
        if (PyDict_SetItem(stored, name, value) < 0)
            return -1;
    }
    return 1;
}

/* The dict in a read-only view of one, or a dict, once more; NULL, perhaps without an error, for anything else. */
static PyObject *copied(PyObject *properties)
{
    if (PyDict_CheckExact(properties))
        return PyDict_Copy(properties);
    if (Py_TYPE(properties) != &PyDictProxy_Type)
        return NULL;
    PyObject *copy = PyObject_CallMethodObjArgs(properties, n_copy, NULL); /* in a third of the time of an update */
    if (copy && !PyDict_CheckExact(copy))
        Py_CLEAR(copy);
    return copy;
}

/* What a record says of a message: its properties, TAGS, KEYS, a unique key, of a half message its group, and more.
 *
 * Of properties, tag, keys, unique key, group or None, more properties or None: a dict, None for what the Python should
 * look at, or NULL with an error.
 */
static PyObject *stored_properties(PyObject *const *args)
{
    if (!PyUnicode_Check(args[1]) || !PyTuple_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "the properties of a record need a tag and a tuple of keys");
    PyObject *stored = copied(args[0]), *joined = NULL;
    Py_ssize_t keys = PyTuple_Size(args[2]);
    if (!stored)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    int failed = PyUnicode_GetLength(args[1]) && PyDict_SetItem(stored, n_TAGS, args[1]) < 0;
    if (!failed && keys) {
        joined = keys == 1 ? Py_NewRef(PyTuple_GetItem(args[2], 0)) : PyUnicode_Join(n_blank, args[2]);
        failed = !joined || PyDict_SetItem(stored, n_KEYS, joined) < 0;
    }
    failed = failed || PyDict_SetItem(stored, n_UNIQ_KEY, args[3]) < 0;
    if (!failed && args[4] != Py_None)
        failed = PyDict_SetItem(stored, n_TRAN_MSG, n_true) < 0 || PyDict_SetItem(stored, n_PGROUP, args[4]) < 0;
    Py_XDECREF(joined);
    int added = failed ? -1 : args[5] == Py_None ? 1 : add_properties(stored, args[5]);
    if (added <= 0)
        Py_CLEAR(stored);
    return added ? stored : Py_NewRef(Py_None);
}

/* stored_properties(properties, tag, keys, unique key, group or None, more properties or None) -> dict, or None */
static PyObject *fast_stored_properties(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 6)
        return PyErr_Format(PyExc_TypeError, "stored_properties takes 6 arguments, not %zd", count);
    return stored_properties(args);
}

#endif
