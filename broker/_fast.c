/* The compiled twin of a few hot functions; the Python beside each is the reference, and does what is uncommon.
 *
 * Built against the limited API of CPython 3.11: one file for all later versions of a platform. See broker/compiled.py.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_fast_crc.h"
#include "_fast_digest.h"
#include "_fast_index_items.h"
#include "_fast_scan.h"
#include "_fast_strings.h"

static PyObject *fast_crc32(PyObject *module, PyObject *data)
{
    (void)module;
    Py_buffer bytes;
    if (PyObject_GetBuffer(data, &bytes, PyBUF_SIMPLE) < 0)
        return NULL;
    uint32_t crc = crc32_from(0, bytes.buf, (size_t)bytes.len);
    PyBuffer_Release(&bytes);
    return PyLong_FromUnsignedLong(crc);
}

static PyMethodDef methods[] = {
    {"crc32", fast_crc32, METH_O, "The CRC-32 of bytes."},
    {"digest_sums", fast_digest_sums, METH_VARARGS, digest_sums_doc},
    {"index_items", fast_index_items, METH_VARARGS, index_items_doc},
    {"java_hashes", fast_java_hashes, METH_VARARGS, java_hashes_doc},
    {"scan_window", fast_scan_window, METH_VARARGS, scan_window_doc},
    {"string_codes", fast_string_codes, METH_VARARGS, string_codes_doc},
    {NULL, NULL, 0, NULL},
};

static int fast_exec(PyObject *module)
{
    crc_init();
    return PyModule_AddIntConstant(module, "sources", (long)CHECKBACK_SOURCES);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)fast_exec}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "broker._fast", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fast(void) { return PyModuleDef_Init(&definition); }
