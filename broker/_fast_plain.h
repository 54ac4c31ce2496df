/* Append a record, or a plain message, from the message to where its record went, in one call each.
 *
 * The reference: `Appender.append_one`, and `compose` of broker/store/write/compose.py.
 */
#ifndef CHECKBACK_FAST_PLAIN_H
#define CHECKBACK_FAST_PLAIN_H

#include "_fast_message.h"

/* An Appended, None, or NULL with an error. */
static PyObject *append_loaded(Append *self, Stored *one)
{
    long long place[2];
    int done = store_with_lock(self, one, 1, -1, 0, place);
    if (done != 1)
        return done < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *fields = Py_BuildValue("(LLLL)", place[0], one->queue_offset, one->size, place[1]);
    PyObject *made = fields ? PyObject_CallFunctionObjArgs(self->tuple_new, self->result, fields, NULL) : NULL;
    Py_XDECREF(fields);
    return made;
}

/* `Appender.cache_half`. */
static int remember(Append *self, PyObject *record, const Stored *one, PyObject *done)
{
    if (!one->opens_slot || one->size > CACHED_BYTES_MAX || done == Py_None)
        return 0;
    PyObject *pair = PyTuple_Pack(2, PyTuple_GetItem(done, 0), record);
    return pair ? PyList_SetItem(self->cached, (Py_ssize_t)(one->queue_offset % CACHED), pair) : -1;
}

static PyObject *Append_append(PyObject *object, PyObject *record)
{
    Append *self = (Append *)object;
    Stored one;
    memset(&one, 0, sizeof one);
    int loaded = load(record, &one);
    PyObject *done = loaded < 0 ? NULL : loaded ? append_loaded(self, &one) : Py_NewRef(Py_None);
    if (done && remember(self, record, &one, done) < 0)
        Py_CLEAR(done);
    unload(&one);
    return done;
}

/* The record of a plain message: 1, 0 when the Python should look at it, or -1.
 *
 * Of topic, body, properties, queue_id, born_ms, origin or None.
 */
static int make_plain(PyObject *const *args, Stored *one)
{
    Text topic;
    Properties read;
    Sender sender;
    long long queue_id = PyLong_AsLongLong(args[3]), born_ms = PyLong_AsLongLong(args[4]);
    int known = PyErr_Occurred() ? -1 : read_sender(args[5], &sender);
    if (known < 0)
        return -1;
    if (!known || !PyUnicode_CheckExact(args[0]) || !PyBytes_CheckExact(args[1]) || PyBytes_Size(args[1]) > (1 << 30)
        || !PyLong_CheckExact(args[3]) || !ascii_of(args[0], &topic) || topic.size > TOPIC_MAX || queue_id < 0
        || queue_id > INT32_MAX || !read_properties(args[2], &read))
        return 0;
    one->code_count = list_codes(topic, read.unique, read.keys, one->codes);
    if (one->code_count > CODES_MAX)
        return 0;
    one->slot = -1;
    one->tags = (int32_t)java_hash(0, read.tags.text, read.tags.size);
    one->key = PyTuple_Pack(2, args[0], args[3]);
    one->owner = one->key
        ? record_bytes(topic, args[1], args[2], read.size, queue_id, born_ms, TYPE_NONE, &sender)
        : NULL;
    if (!one->owner)
        return -1;
    one->raw = (const uint8_t *)PyBytes_AsString(one->owner);
    one->size = PyBytes_Size(one->owner);
    return 1;
}

/* send(fields of a Message, more properties or None, unique key, queue_id, born_ms, origin or None) -> Appended, or None
 *
 * The topic must have been admitted, and none of the properties ask for a delay.
 */
static PyObject *Append_send(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    if (count != 6 || !PyDict_CheckExact(args[0]))
        return PyErr_Format(PyExc_TypeError, "send takes a dict and 5 arguments");
    PyObject *message[M_COUNT] = {NULL}, *stored = NULL;
    Stored one;
    memset(&one, 0, sizeof one);
    int ready = read_message(args[0], message);
    if (ready == 1) {
        PyObject *texts[] = {message[M_PROPERTIES], message[M_TAG], message[M_KEYS], args[2], Py_None, args[1]};
        stored = stored_properties(texts);
        ready = stored ? stored != Py_None : -1;
    }
    if (ready == 1) {
        PyObject *all[] = {message[M_TOPIC], message[M_BODY], stored, args[3], args[4], args[5]};
        ready = make_plain(all, &one);
    }
    PyObject *done = ready < 0 ? NULL : ready ? append_loaded((Append *)object, &one) : Py_NewRef(Py_None);
    unload(&one);
    Py_XDECREF(stored);
    for (int at = 0; at < M_COUNT; at++)
        Py_XDECREF(message[at]);
    return done;
}

#endif
