/* A thread that flushes a file beside Python: it never needs the interpreter's lock, so a flush goes on while the thread
 * that asked for it runs Python (`Flusher` of broker/store/disk/maps.py). One flush at a time.
 */
#ifndef CHECKBACK_FAST_FLUSHER_H
#define CHECKBACK_FAST_FLUSHER_H

#include <Python.h>

#ifdef __linux__
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static const char flusher_name[] = "broker._fast.flusher";

typedef struct {
    pthread_mutex_t mutex; /* over all that follows */
    pthread_cond_t wanted, done;
    pthread_t thread;
    pid_t process; /* a forked child has no such thread */
    int descriptor, error;
    int is_running, is_begun, is_busy, is_over;
} Flusher;

static void *flusher_run(void *object)
{
    Flusher *self = object;
    pthread_mutex_lock(&self->mutex);
    while (!self->is_over) {
        if (!self->is_busy) {
            pthread_cond_wait(&self->wanted, &self->mutex);
            continue;
        }
        int descriptor = self->descriptor, failed;
        pthread_mutex_unlock(&self->mutex);
        do
            failed = fdatasync(descriptor);
        while (failed && errno == EINTR);
        int error = failed ? errno : 0;
        pthread_mutex_lock(&self->mutex);
        self->error = error;
        self->is_busy = 0;
        pthread_cond_broadcast(&self->done);
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

/* Signals are Python's: its handlers run in other threads. */
static int flusher_start(Flusher *self)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    self->is_running = pthread_create(&self->thread, NULL, flusher_run, self) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return self->is_running;
}

static void flusher_free(PyObject *capsule)
{
    Flusher *self = PyCapsule_GetPointer(capsule, flusher_name);
    if (!self)
        return;
    if (self->process == getpid()) {
        if (self->is_running) {
            pthread_mutex_lock(&self->mutex);
            self->is_over = 1;
            pthread_cond_signal(&self->wanted);
            pthread_mutex_unlock(&self->mutex);
            Py_BEGIN_ALLOW_THREADS
            pthread_join(self->thread, NULL);
            Py_END_ALLOW_THREADS
        }
        pthread_cond_destroy(&self->done);
        pthread_cond_destroy(&self->wanted);
        pthread_mutex_destroy(&self->mutex);
    }
    PyMem_Free(self);
}

static Flusher *flusher_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, flusher_name);
}
#endif

static const char flusher_doc[] =
    "flusher() -> capsule or None\n\n"
    "What flushes files beside this thread, one at a time; None on a system where the Python does not use it.";

static PyObject *fast_flusher(PyObject *module, PyObject *nothing)
{
    (void)module, (void)nothing;
#ifdef __linux__
    Flusher *self = PyMem_Calloc(1, sizeof *self);
    if (!self)
        return PyErr_NoMemory();
    self->process = getpid();
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->wanted, NULL);
    pthread_cond_init(&self->done, NULL);
    PyObject *made = PyCapsule_New(self, flusher_name, flusher_free);
    if (!made)
        PyMem_Free(self);
    return made;
#else
    Py_RETURN_NONE;
#endif
}

static const char flush_begin_doc[] =
    "flush_begin(flusher, descriptor) -> bool\n\n"
    "Begin an fdatasync; False when none can begin now: another is at work, or the process was forked since.";

static PyObject *fast_flush_begin(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    (void)module;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "flush_begin takes a flusher and a descriptor");
    long descriptor = PyLong_AsLong(arguments[1]);
    if (PyErr_Occurred())
        return NULL;
    int is_begun = 0;
#ifdef __linux__
    Flusher *self = flusher_of(arguments[0]);
    if (!self)
        return NULL;
    if (self->process == getpid() && descriptor >= 0 && descriptor <= INT_MAX) {
        pthread_mutex_lock(&self->mutex);
        if (!self->is_busy && (self->is_running || flusher_start(self))) {
            self->descriptor = (int)descriptor;
            self->is_begun = self->is_busy = is_begun = 1;
            pthread_cond_signal(&self->wanted);
        }
        pthread_mutex_unlock(&self->mutex);
    }
#endif
    return PyBool_FromLong(is_begun);
}

static const char flush_wait_doc[] =
    "flush_wait(flusher) -> int\n\n"
    "Wait for the flush that was begun last: the number of its error, 0 for none. It may be asked again.";

static PyObject *fast_flush_wait(PyObject *module, PyObject *flusher)
{
    (void)module;
#ifdef __linux__
    Flusher *self = flusher_of(flusher);
    if (!self)
        return NULL;
    if (self->process == getpid()) {
        int is_begun, error;
        Py_BEGIN_ALLOW_THREADS
        pthread_mutex_lock(&self->mutex);
        while (self->is_busy)
            pthread_cond_wait(&self->done, &self->mutex);
        is_begun = self->is_begun, error = self->error;
        pthread_mutex_unlock(&self->mutex);
        Py_END_ALLOW_THREADS
        if (is_begun)
            return PyLong_FromLong(error);
    }
#else
    (void)flusher;
#endif
    return PyErr_Format(PyExc_ValueError, "no flush was begun in this process");
}

#endif
