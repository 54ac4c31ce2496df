/* A message as an application gives it: `Message.__post_init__` of broker/message.py, for texts in ASCII without blanks
 * where none may be. Anything else, and all that is refused, the Python looks at.
 */
#ifndef CHECKBACK_FAST_MESSAGE_H
#define CHECKBACK_FAST_MESSAGE_H

#include "_fast_record.h"

enum { BODY_MAX = 4 * 1024 * 1024, TEXTS_MAX = 8000 };

static PyObject *n_body, *n_tag, *n_keys, *n_properties;

/* ASCII from `lowest` on, without `but`; its length is added to `total`. An empty one is not. */
static int plain(PyObject *object, uint8_t lowest, uint8_t but, Py_ssize_t *total)
{
    Text text;
    if (!PyUnicode_CheckExact(object) || !text_of(object, &text) || !text.size)
        return 0;
    for (Py_ssize_t at = 0; at < text.size; at++) {
        uint8_t sign = (uint8_t)text.text[at];
        if (sign < lowest || sign >= 127 || sign == but)
            return 0;
    }
    *total += text.size + 2;
    return 1;
}

/* The keys as a tuple of texts; NULL for anything else. */
static PyObject *plain_keys(PyObject *keys, Py_ssize_t *total)
{
    PyObject *tuple;
    if (PyUnicode_CheckExact(keys))
        tuple = PyTuple_Pack(1, keys);
    else if (PyTuple_CheckExact(keys))
        tuple = Py_NewRef(keys);
    else
        tuple = PyList_CheckExact(keys) ? PyList_AsTuple(keys) : NULL;
    for (Py_ssize_t at = 0; tuple && at < PyTuple_Size(tuple); at++)
        if (!plain(PyTuple_GetItem(tuple, at), '!', 0, total))
            Py_CLEAR(tuple);
    return tuple;
}

/* A read-only copy of the properties; NULL for anything else than a dict of texts that are not RocketMQ's own. */
static PyObject *plain_properties(PyObject *given, PyObject *reserved, Py_ssize_t *total)
{
    PyObject *name, *value, *copy = PyDict_CheckExact(given) ? PyDict_Copy(given) : NULL, *proxy;
    Py_ssize_t position = 0;
    while (copy && PyDict_Next(copy, &position, &name, &value))
        if (!plain(name, ' ', 0, total) || !plain(value, ' ', 0, total) || PySet_Contains(reserved, name) != 0)
            Py_CLEAR(copy);
    proxy = copy ? PyDictProxy_New(copy) : NULL;
    Py_XDECREF(copy);
    return proxy;
}

/* message(fields, topic, body, tag, keys, properties, check of topics, reserved names) -> True when all is in `fields` */
static PyObject *fast_message(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 8 || !PyDict_Check(args[0]) || !PyAnySet_Check(args[7]))
        return PyErr_Format(PyExc_TypeError, "message takes a dict, 6 arguments and a set");
    PyObject *fields = args[0], *topic = args[1], *body = args[2], *tag = args[3];
    Py_ssize_t total = 0, tag_size = PyUnicode_CheckExact(tag) ? PyUnicode_GetLength(tag) : -1;
    if (!PyBytes_CheckExact(body) || PyBytes_Size(body) < 1 || PyBytes_Size(body) > BODY_MAX || tag_size < 0
        || (tag_size && !plain(tag, '!', '|', &total)) || !plain(topic, '!', 0, &total))
        Py_RETURN_NONE;
    PyObject *checked = PyObject_CallFunctionObjArgs(args[6], topic, NULL);
    PyObject *keys = checked ? plain_keys(args[4], &total) : NULL;
    PyObject *properties = keys ? plain_properties(args[5], args[7], &total) : NULL, *answer = Py_None;
    if (properties && total <= TEXTS_MAX) {
        if (PyDict_SetItem(fields, n_topic, topic) == 0 && PyDict_SetItem(fields, n_body, body) == 0
            && PyDict_SetItem(fields, n_tag, tag) == 0 && PyDict_SetItem(fields, n_keys, keys) == 0
            && PyDict_SetItem(fields, n_properties, properties) == 0)
            answer = Py_True;
    }
    Py_XDECREF(checked);
    Py_XDECREF(keys);
    Py_XDECREF(properties);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return NULL; /* an interrupt */
    PyErr_Clear(); /* the Python raises what it has to say */
    return Py_NewRef(answer);
}

enum { M_TOPIC, M_BODY, M_TAG, M_KEYS, M_PROPERTIES, M_COUNT };

/* The fields of a Message, held: who else changes them meanwhile changes nothing here. 1, 0 for others, or -1. */
static int read_message(PyObject *fields, PyObject **held)
{
    PyObject *names[M_COUNT] = {n_topic, n_body, n_tag, n_keys, n_properties};
    for (int at = 0; at < M_COUNT; at++) {
        held[at] = Py_XNewRef(PyDict_GetItemWithError(fields, names[at]));
        if (!held[at])
            return PyErr_Occurred() ? -1 : 0;
    }
    return PyUnicode_CheckExact(held[M_TAG]) && PyTuple_CheckExact(held[M_KEYS]);
}

#endif
