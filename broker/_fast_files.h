/* Whether files stand where they stood: `Disk.stands` of broker/store/disk/files.py for several, with the
 * interpreter's lock given away once.
 */
#ifndef CHECKBACK_FAST_FILES_H
#define CHECKBACK_FAST_FILES_H

#include <Python.h>
#include <sys/stat.h>

enum { FILES_MAX = 16 };

static const char stand_doc[] =
    "stand(files) -> bool or None\n\n"
    "Whether each of these tuples (path as bytes, inode, size in bytes or -1) is still true; None for too many.";

static PyObject *fast_stand(PyObject *module, PyObject *files)
{
    (void)module;
    const char *paths[FILES_MAX];
    unsigned long long inodes[FILES_MAX];
    long long sizes[FILES_MAX];
    if (!PyTuple_Check(files))
        return PyErr_Format(PyExc_TypeError, "stand takes a tuple of tuples");
    Py_ssize_t count = PyTuple_Size(files);
    if (count > FILES_MAX)
        Py_RETURN_NONE;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *file = PyTuple_GetItem(files, at);
        if (!PyTuple_Check(file) || PyTuple_Size(file) != 3 || !PyBytes_Check(PyTuple_GetItem(file, 0)))
            return PyErr_Format(PyExc_TypeError, "a file is a tuple of its path as bytes, its inode and its size");
        paths[at] = PyBytes_AsString(PyTuple_GetItem(file, 0)); /* `files` keeps it alive */
        inodes[at] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(file, 1));
        sizes[at] = PyLong_AsLongLong(PyTuple_GetItem(file, 2));
        if (PyErr_Occurred())
            return NULL;
    }
    int all = 1;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 0; all && at < count; at++) {
        struct stat found;
        all = stat(paths[at], &found) == 0 && (unsigned long long)found.st_ino == inodes[at]
            && (sizes[at] < 0 || (long long)found.st_size == sizes[at]);
    }
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(all);
}

#endif
