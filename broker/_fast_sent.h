/* What a pull sends: the records that units of a ConsumeQueue name, read from the system's cache, without the CRC
 * property of ours. The Python: `cached_records` and `as_sent` of broker/server/requests/records.py.
 */
#ifndef CHECKBACK_FAST_SENT_H
#define CHECKBACK_FAST_SENT_H

#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "_fast_numbers.h"

enum { SENT_UNIT = 20, SENT_MAX = 1024, SENT_BODY_AT = 88, SENT_CRC = 20, SENT_SYS_FLAG_AT = 36, SENT_IPV6 = 0x30 };
static const unsigned char sent_magic[4] = {0xda, 0xa3, 0x20, 0xa7};
static const char sent_crc[] = "__CRC32#\x01";

static const char sent_records_doc[] =
    "sent_records(descriptor, base, end, units, bytes_max) -> (records, how many) or None\n\n"
    "The file has the bytes base ... end - 1 of the CommitLog; `units` are whole ones. None when the Python has to do\n"
    "it: a record is not in the system's cache, lies elsewhere, or is none of the common kind.";

#ifdef RWF_NOWAIT
/* The record without its CRC, moved to `to`, which may be `from`; its new size, 0 when it is not of the common kind. */
static uint32_t sent_one(const uint8_t *from, uint32_t size, long long offset, uint8_t *to)
{
    if (get32(from) != size || memcmp(from + 4, sent_magic, 4) || (long long)get64(from + 28) != offset
        || (from[SENT_SYS_FLAG_AT + 3] & SENT_IPV6))
        return 0;
    if (memcmp(from + size - SENT_CRC, sent_crc, 9)) {
        memmove(to, from, size);
        return size;
    }
    uint64_t topic_at = (uint64_t)SENT_BODY_AT + get32(from + SENT_BODY_AT - 4);
    uint32_t left = size - SENT_CRC;
    if (topic_at + 3 > left)
        return 0;
    uint64_t length_at = topic_at + 1 + from[topic_at];
    if (length_at + 2 > left || left - length_at - 2 > 0x7fff)
        return 0;
    memmove(to, from, left);
    put32(to, left);
    to[length_at] = (uint8_t)((left - length_at - 2) >> 8);
    to[length_at + 1] = (uint8_t)(left - length_at - 2);
    return left;
}
#endif

static PyObject *fast_sent_records(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 5 || !PyBytes_Check(arguments[3]))
        return PyErr_Format(PyExc_TypeError, "sent_records takes a descriptor, base, end, units as bytes, bytes_max");
    long long descriptor = PyLong_AsLongLong(arguments[0]), base = PyLong_AsLongLong(arguments[1]);
    long long end = PyLong_AsLongLong(arguments[2]), most = PyLong_AsLongLong(arguments[4]);
    if (PyErr_Occurred())
        return NULL;
#ifdef RWF_NOWAIT
    const uint8_t *units = (const uint8_t *)PyBytes_AsString(arguments[3]);
    Py_ssize_t named = PyBytes_Size(arguments[3]) / SENT_UNIT, taken = 0;
    long long total = 0;
    if (descriptor < 0 || descriptor > INT_MAX || base < 0 || end < base || named > SENT_MAX || most > (1 << 30))
        Py_RETURN_NONE;
    for (; taken < named; taken++) {
        long long offset = (long long)get64(units + taken * SENT_UNIT);
        int32_t size = (int32_t)get32(units + taken * SENT_UNIT + 8);
        if (size <= 0 || offset < 0 || (taken && total + size > most))
            break;
        if (size < SENT_BODY_AT + 3 + SENT_CRC || offset < base || offset > end - size)
            Py_RETURN_NONE;
        total += size;
    }
    if (!taken || total > (1 << 30))
        Py_RETURN_NONE;
    uint8_t *begin = PyMem_Malloc((size_t)total), *to = begin;
    if (!begin)
        return PyErr_NoMemory();
    for (Py_ssize_t at = 0; at < taken; at++) { /* with the interpreter's lock: nothing of it waits */
        long long offset = (long long)get64(units + at * SENT_UNIT);
        uint32_t size = get32(units + at * SENT_UNIT + 8), kept = 0;
        struct iovec place = {to, size};
        if (preadv2((int)descriptor, &place, 1, (off_t)(offset - base), RWF_NOWAIT) == (ssize_t)size)
            kept = sent_one(to, size, offset, to);
        if (!kept) {
            PyMem_Free(begin);
            Py_RETURN_NONE;
        }
        to += kept;
    }
    /* No "y#": of a module that a Python from 3.13 on built, an older one does not take it. */
    PyObject *raw = PyBytes_FromStringAndSize((const char *)begin, (Py_ssize_t)(to - begin));
    PyObject *sent = raw ? Py_BuildValue("(Nn)", raw, taken) : NULL;
    PyMem_Free(begin);
    return sent;
#else
    (void)descriptor, (void)base, (void)end, (void)most;
    Py_RETURN_NONE;
#endif
}

#endif
