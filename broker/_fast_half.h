/* A half message, from a message to what the caller of a prepare gets, in one call.
 *
 * What was stored here is remembered by its slot, so that its end needs neither the log nor an object of Python. The
 * reference: broker/transaction/preparing.py, `compose_half`, the engine's `half`, and `Appender.append_one`.
 */
#ifndef CHECKBACK_FAST_HALF_H
#define CHECKBACK_FAST_HALF_H

#include "_fast_message.h"

enum { END_ROOM = 1024 }; /* by which the end of a half message may be larger: broker/store/write/compose.py */

static PyObject *n_TRANSACTION_ID, *n_REAL_TOPIC, *n_REAL_QID, *n_commitlog_offset, *n_producer_group, *n_unique_key,
    *n_born_timestamp_ms, *n_store_timestamp_ms, *n_size;

static void forget(Kept *kept)
{
    Py_CLEAR(kept->raw);
    Py_CLEAR(kept->key);
    Py_CLEAR(kept->producer_group);
}

static void keep(Append *self, const Stored *one, Kept *made, long long offset)
{
    if (one->size > CACHED_BYTES_MAX)
        return;
    Kept *kept = self->kept + one->queue_offset % CACHED, before = *kept;
    *kept = *made;
    kept->offset = offset;
    kept->tags = one->tags;
    kept->group = one->group;
    Py_INCREF(kept->raw = one->owner);
    Py_INCREF(kept->key);
    Py_INCREF(kept->producer_group);
    forget(&before);
}

static int put_number(PyObject *fields, PyObject *name, long long number)
{
    PyObject *value = PyLong_FromLongLong(number);
    int failed = !value || PyDict_SetItem(fields, name, value) < 0;
    Py_XDECREF(value);
    return failed;
}

/* `object.__new__`, and the dict of what it made: a frozen dataclass sets field by field. */
static PyObject *new_object(PyTypeObject *type, PyObject **fields)
{
    newfunc make = (newfunc)PyType_GetSlot(type, Py_tp_new);
    PyObject *none = PyTuple_New(0), *made = none ? make(type, none, NULL) : NULL;
    *fields = made ? PyObject_GenericGetDict(made, NULL) : NULL;
    Py_XDECREF(none);
    return made;
}

/* `_new_half` of broker/transaction/preparing.py; the arguments: see `make_half`. */
static PyObject *new_half(PyObject *const *args, const Stored *one, const long long place[2])
{
    PyObject *fields, *half = new_object((PyTypeObject *)args[0], &fields);
    PyObject *unique = PyDict_GetItemWithError(args[4], n_UNIQ_KEY);
    int failed = !fields || !unique || put_number(fields, n_commitlog_offset, place[0])
        || put_number(fields, n_slot, one->queue_offset) || PyDict_SetItem(fields, n_producer_group, args[7]) < 0
        || PyDict_SetItem(fields, n_topic, args[1]) < 0 || PyDict_SetItem(fields, n_queue_id, args[5]) < 0
        || PyDict_SetItem(fields, n_unique_key, unique) < 0 || PyDict_SetItem(fields, n_keys, args[3]) < 0
        || PyDict_SetItem(fields, n_born_timestamp_ms, args[6]) < 0
        || put_number(fields, n_store_timestamp_ms, place[1]) || put_number(fields, n_size, one->size)
        || PyDict_SetItem(fields, n_properties, args[4]) < 0;
    Py_XDECREF(fields);
    if (failed)
        Py_CLEAR(half);
    return half;
}

/* `HalfOpEngine.half`: what it adds to the properties, read again with that. 1, 0 or -1. */
static int add_target(PyObject *properties, PyObject *topic, PyObject *queue_id, Properties *read)
{
    PyObject *unique = PyDict_GetItemWithError(properties, n_UNIQ_KEY), *number = PyObject_Str(queue_id);
    int failed = !unique || !number || PyDict_SetItem(properties, n_TRANSACTION_ID, unique) < 0
        || PyDict_SetItem(properties, n_REAL_TOPIC, topic) < 0 || PyDict_SetItem(properties, n_REAL_QID, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : read_properties(properties, read);
}

/* The record of a half message, and what its end will repeat: 1, 0 or -1.
 *
 * Of Half, topic, body, keys, properties, queue_id, born_ms, producer group, origin or None.
 */
static int make_half(Append *self, PyObject *const *args, Stored *one, Kept *made)
{
    Text topic, stored_in;
    Properties read;
    Sender sender;
    uint32_t codes[CODES_MAX];
    long long queue_id = PyLong_AsLongLong(args[5]), born_ms = PyLong_AsLongLong(args[6]);
    int known = PyErr_Occurred() ? -1 : read_sender(args[8], &sender);
    if (known < 0)
        return -1;
    if (!known || !PyUnicode_CheckExact(args[7]) || !PyUnicode_CheckExact(args[1]) || !PyTuple_CheckExact(args[3])
        || !PyLong_CheckExact(args[5]) || !PyBytes_CheckExact(args[2]) || PyBytes_Size(args[2]) > (1 << 30)
        || !ascii_of(args[1], &topic) || topic.size > TOPIC_MAX || queue_id < 0 || queue_id > INT32_MAX
        || !read_properties(args[4], &read) || !read.unique.size)
        return 0;
    made->code_count = list_codes(topic, read.unique, read.keys, codes);
    if (made->code_count > KEPT_CODES)
        return 0;
    memcpy(made->codes, codes, sizeof made->codes);
    made->producer_group = args[7];
    made->key = PyTuple_Pack(2, args[1], args[5]);
    one->key = made->key ? Py_NewRef(self->has_redo_log ? made->key : self->half_key) : NULL;
    if (!one->key)
        return -1;
    stored_in = topic;
    one->kind = TYPE_PREPARED;
    if (!self->has_redo_log) {
        int added = add_target(args[4], args[1], args[5], &read);
        if (added <= 0 || !ascii_of(PyTuple_GetItem(self->half_key, 0), &stored_in))
            return added < 0 ? -1 : 0;
        queue_id = PyLong_AsLongLong(PyTuple_GetItem(self->half_key, 1));
        one->kind = 0;
    }
    one->code_count = list_codes(stored_in, read.unique, read.keys, one->codes);
    one->opens_slot = 1;
    one->slot = -1;
    one->tags = (int32_t)java_hash(0, read.tags.text, read.tags.size);
    one->group = (int32_t)java_hash(0, read.group.text, read.group.size);
    one->owner = record_bytes(stored_in, args[2], args[4], read.size, queue_id, born_ms, one->kind, &sender);
    if (!one->owner)
        return -1;
    one->raw = (const uint8_t *)PyBytes_AsString(one->owner);
    one->size = PyBytes_Size(one->owner);
    return one->size <= self->size_max - END_ROOM;
}

/* A half message in the log: a Half, None, or NULL with an error. The arguments: see `make_half`. */
static PyObject *store_half(Append *self, PyObject *const *args)
{
    Stored one;
    Kept made;
    long long place[2];
    memset(&one, 0, sizeof one);
    memset(&made, 0, sizeof made);
    int done = make_half(self, args, &one, &made);
    if (done == 1)
        done = store_with_lock(self, &one, 1, -1, 0, place);
    PyObject *half = done < 0 ? NULL : done ? new_half(args, &one, place) : Py_NewRef(Py_None);
    if (done == 1)
        keep(self, &one, &made, place[0]);
    unload(&one);
    Py_XDECREF(made.key);
    return half;
}

/* prepare(Half, fields of a Message, more properties or None, unique key, queue_id, born_ms, producer group,
 *         origin or None) -> Half, or None
 *
 * The topic must have been admitted, and none of the properties ask for a delay.
 */
static PyObject *Append_prepare(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    if (count != 8 || !PyType_Check(args[0]) || !PyDict_CheckExact(args[1]))
        return PyErr_Format(PyExc_TypeError, "prepare takes a class, a dict and 6 arguments");
    PyObject *message[M_COUNT] = {NULL}, *stored = NULL, *half = NULL;
    int ready = read_message(args[1], message);
    if (ready == 1 && is_storable(args[6])) {
        PyObject *texts[] = {message[M_PROPERTIES], message[M_TAG], message[M_KEYS], args[3], args[6], args[2]};
        stored = stored_properties(texts);
        ready = stored ? stored != Py_None : -1;
    } else if (ready == 1)
        ready = 0;
    if (ready == 1) {
        PyObject *all[] = {args[0], message[M_TOPIC], message[M_BODY], message[M_KEYS], stored,
                           args[4], args[5], args[6], args[7]};
        half = store_half((Append *)object, all);
    } else if (ready == 0)
        half = Py_NewRef(Py_None);
    Py_XDECREF(stored);
    for (int at = 0; at < M_COUNT; at++)
        Py_XDECREF(message[at]);
    return half;
}

#endif
