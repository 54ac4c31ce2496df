/* What the standard library has no call for, or none that looks at several files at once: whether files stand where
 * they stood (`Disk.stands` of broker/store/disk/files.py), and the start of a write to the disk.
 */
#ifndef CHECKBACK_FAST_FILES_H
#define CHECKBACK_FAST_FILES_H

#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

enum { FILES_MAX = 16 };

/* Whether a file stands at its path. It is not looked at when the file was changed: who reads that of a file makes Linux
 * (6.13 and later) write its next change into the file system's journal, for which the next fsync has to wait: 30 µs.
 */
static int stands_at(const char *path, unsigned long long inode, long long size)
{
#ifdef STATX_INO
    struct statx known;
    if (statx(AT_FDCWD, path, 0, STATX_INO | STATX_SIZE, &known) == 0)
        return known.stx_ino == inode && (size < 0 || known.stx_size == (unsigned long long)size);
    if (errno != ENOSYS && errno != EPERM) /* an old kernel, or a sandbox that does not know the call */
        return 0;
#endif
    struct stat found;
    return stat(path, &found) == 0 && (unsigned long long)found.st_ino == inode
        && (size < 0 || (long long)found.st_size == size);
}

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
    for (Py_ssize_t at = 0; all && at < count; at++)
        all = stands_at(paths[at], inodes[at], sizes[at]);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(all);
}

static const char start_write_doc[] =
    "start_write(descriptor, start, size) -> None\n\n"
    "Let the system begin to write these bytes of a file, and wait for nothing. An error is that of the fsync to come.";

static PyObject *fast_start_write(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "start_write takes a descriptor, where the bytes start, and their number");
    long descriptor = PyLong_AsLong(arguments[0]);
    long long start = PyLong_AsLongLong(arguments[1]), size = PyLong_AsLongLong(arguments[2]);
    if (PyErr_Occurred())
        return NULL;
#ifdef SYNC_FILE_RANGE_WRITE
    if (descriptor >= 0 && descriptor <= INT_MAX && start >= 0 && size > 0) {
        Py_BEGIN_ALLOW_THREADS
        (void)!sync_file_range((int)descriptor, start, size, SYNC_FILE_RANGE_WRITE);
        Py_END_ALLOW_THREADS
    }
#else
    (void)descriptor, (void)start, (void)size;
#endif
    Py_RETURN_NONE;
}

#endif
