/* What an append works on: the appender's objects, a record that is to be stored, the maps that are borrowed, the lock.
 *
 * Source: broker/store/write/pending_record.py, broker/store/disk/append_lock.py.
 */
#ifndef CHECKBACK_FAST_STORED_H
#define CHECKBACK_FAST_STORED_H

#include <errno.h>
#include <sys/file.h>

#include "_fast_numbers.h"

enum { TYPE_NONE = 0, TYPE_PREPARED = 4, TYPE_COMMIT = 8, TYPE_ROLLBACK = 12 };

/* broker/store/shared/control.py: Word */
enum { W_TAIL = 8, W_INTENT = 9, W_DISPATCHED = 10, W_GENERATION = 12, W_POISON = 13, W_SLOTS = 14, W_REDO_UNITS = 15,
       W_STORE_MS = 17, W_INDEX = 19, W_SHARED = 20, W_COUNT = 22 };

/* broker/format: places in a record of version 1 with IPv4 addresses, and the sizes of units, slots, items, cells */
enum { MARK = 8, BODY_CRC_AT = 8, QUEUE_ID_AT = 12, FLAG_AT = 16, QUEUE_OFFSET_AT = 20, COMMITLOG_OFFSET_AT = 28,
       SYS_FLAG_AT = 36, BORN_AT = 40, STORE_TIME_AT = 56, RECONSUME_AT = 72, PREPARED_AT = 76, BODY_LENGTH_AT = 84,
       BODY_AT = 88, CRC_ITEM = 20 };
enum { UNIT = 20, SLOT = 24, SLOT_STATE_AT = 23, INDEX_HEAD = 40, INDEX_SLOT = 4, ITEM = 20, CELL_WORDS = 64 };
enum { CODES_MAX = 64, CACHED = 1024, CACHED_BYTES_MAX = 16384, KEPT_CODES = 8 };

/* Tries at the append lock, and pauses between two: together several times what an append takes, page faults included.
 * A put that gives up goes the way of Python under the lock, which makes the other processes give up, too. */
enum { TRIES = 64, PAUSES = 8 };

static PyObject *n_raw, *n_topic, *n_queue_id, *n_kind, *n_tags_code, *n_group_hash, *n_index_codes, *n_prepared_offset,
    *n_slot, *n_target, *n_ended, *n_last, *n_newest, *n_generation, *n_seen_ms, *n_threads, *n_held, *n_kept, *n_alone,
    *n_descriptor, *n_acquire, *n_release, *n_delay_queue;

/* A half message that this process stored: what its end repeats. */
typedef struct {
    long long offset, tags, group;
    PyObject *raw, *key, *producer_group; /* key: the topic and the queue that the message is for */
    uint32_t codes[KEPT_CODES];           /* of its unique key and keys in that topic */
    int code_count;
} Kept;

typedef struct {
    PyObject_HEAD
    PyObject *lock, *control, *cells, *log, *dispatcher, *redo, *table, *queues, *known, *index, *clock, *now_ns, *cached,
        *result, *tuple_new, *schedule_topic;
    PyObject *half_key, *op_key, *op_model; /* of the engine half-op: two queues, and an op message without a body */
    PyObject *threads, *acquire, *release;  /* the lock of this process's threads, and two methods of it */
    Kept *kept; /* CACHED of them, by slot */
    long long op_tags, size_max, table_bytes, redo_bytes, queue_bytes, index_slots, index_items;
    int has_redo_log;
} Append;

/* One record to be stored, and where its parts will go. */
typedef struct {
    const uint8_t *raw;
    long long size, queue_id, tags, group, prepared_offset, slot;
    int kind, opens_slot, code_count, ended_count;
    uint32_t codes[CODES_MAX];
    long long ended[CODES_MAX];
    PyObject *owner, *key; /* keeps `raw` alive; (topic, queue id) */
    long long queue_offset;
    Py_buffer queue;
    uint64_t *cell;
    uint8_t *unit_at, *slot_at, *redo_at;
} Stored;

/* Borrowed memory of the maps that an append needs. */
typedef struct {
    Py_buffer control, cells, log, redo, table, index;
    long long log_base, redo_base, table_base;
    uint64_t *words;
    PyObject *lock, *release; /* the fields of the append lock; what gives back that of the threads */
    int descriptor, locked;
} Held;

/* ---- reading attributes ---- */

static long long number_in(PyObject *value)
{
    long long number = value ? PyLong_AsLongLong(value) : -1;
    Py_XDECREF(value);
    return number;
}

static long long number_of(PyObject *object, PyObject *name)
{
    return number_in(PyObject_GetAttr(object, name));
}

/* An attribute of an object of ours, which has it in its dict: no class has to be looked through first. */
static PyObject *field(PyObject *fields, PyObject *name)
{
    PyObject *value = PyDict_GetItemWithError(fields, name);
    if (!value && !PyErr_Occurred())
        PyErr_SetObject(PyExc_AttributeError, name);
    return Py_XNewRef(value);
}

static PyObject *field_of(PyObject *object, PyObject *name)
{
    PyObject *fields = PyObject_GenericGetDict(object, NULL), *value = fields ? field(fields, name) : NULL;
    Py_XDECREF(fields);
    return value;
}

static int is_true(PyObject *fields, PyObject *name)
{
    PyObject *value = field(fields, name);
    if (!value)
        return -1;
    int truth = PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

/* Numbers of a tuple; -1 with an error set, -2 for more than there is room for. */
static int numbers_of(PyObject *object, PyObject *name, long long *numbers)
{
    PyObject *tuple = PyObject_GetAttr(object, name);
    if (!tuple)
        return -1;
    Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : CODES_MAX + 1;
    for (Py_ssize_t at = 0; at < count && count <= CODES_MAX; at++)
        numbers[at] = PyLong_AsLongLong(PyTuple_GetItem(tuple, at));
    Py_DECREF(tuple);
    return PyErr_Occurred() ? -1 : count > CODES_MAX ? -2 : (int)count;
}

/* A PendingRecord; 1, 0 when it is not for us, -1 with an error. Allocates: call it before the lock is taken. */
static int load(PyObject *record, Stored *one)
{
    long long codes[CODES_MAX];
    PyObject *target = PyObject_GetAttr(record, n_target), *topic, *queue_id;
    one->opens_slot = target != Py_None;
    Py_XDECREF(target);
    one->owner = PyObject_GetAttr(record, n_raw);
    if (!target || !one->owner)
        return -1;
    one->kind = (int)number_of(record, n_kind);
    one->tags = number_of(record, n_tags_code);
    one->group = number_of(record, n_group_hash);
    one->prepared_offset = number_of(record, n_prepared_offset);
    one->slot = number_of(record, n_slot);
    if (PyErr_Occurred())
        return -1;
    one->opens_slot |= one->kind == TYPE_PREPARED;
    one->code_count = numbers_of(record, n_index_codes, codes);
    one->ended_count = one->code_count == -1 ? 0 : numbers_of(record, n_ended, one->ended);
    if (PyErr_Occurred())
        return -1;
    if (!PyBytes_Check(one->owner) || one->code_count < 0 || one->ended_count < 0)
        return 0;
    for (int at = 0; at < one->code_count; at++)
        one->codes[at] = (uint32_t)codes[at];
    one->raw = (const uint8_t *)PyBytes_AsString(one->owner);
    one->size = PyBytes_Size(one->owner);
    topic = PyObject_GetAttr(record, n_topic);
    queue_id = PyObject_GetAttr(record, n_queue_id);
    one->key = topic && queue_id ? PyTuple_Pack(2, topic, queue_id) : NULL;
    Py_XDECREF(topic);
    Py_XDECREF(queue_id);
    return !one->key ? -1 : one->size >= BODY_AT + CRC_ITEM;
}

static void unload(Stored *one)
{
    Py_CLEAR(one->owner);
    Py_CLEAR(one->key);
    if (one->queue.obj)
        PyBuffer_Release(&one->queue);
}

/* ---- the append lock: broker/store/disk/append_lock.py ---- */

static void pause_briefly(void)
{
    for (int pause = 0; pause < PAUSES; pause++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* Know the lock of the threads, which is another one in a forked child: 0, or -1 with an error. */
static int know_threads(Append *self, Held *held)
{
    PyObject *threads = field(held->lock, n_threads);
    if (threads && threads != self->threads) {
        PyObject *acquire = PyObject_GetAttr(threads, n_acquire);
        PyObject *release = acquire ? PyObject_GetAttr(threads, n_release) : NULL;
        if (release) {
            PyObject *before[] = {self->threads, self->acquire, self->release};
            self->threads = Py_NewRef(threads);
            self->acquire = Py_NewRef(acquire);
            self->release = Py_NewRef(release);
            for (int at = 0; at < 3; at++)
                Py_XDECREF(before[at]);
        }
        Py_XDECREF(acquire);
        Py_XDECREF(release);
    }
    Py_XDECREF(threads);
    return PyErr_Occurred() ? -1 : 0;
}

/* 1 when it is taken, 0 when the Python has to wait for it, -1 with an error. */
static int take(Append *self, Held *held)
{
    held->lock = PyObject_GenericGetDict(self->lock, NULL);
    if (!held->lock || know_threads(self, held) < 0)
        return -1;
    PyObject *acquire = Py_NewRef(self->acquire);
    held->release = Py_NewRef(self->release);
    PyObject *got = PyObject_CallFunctionObjArgs(acquire, Py_False, NULL);
    int taken = got ? PyObject_IsTrue(got) : -1;
    Py_XDECREF(got);
    Py_DECREF(acquire);
    if (taken <= 0)
        return taken;
    held->locked = 1;
    int inside = is_true(held->lock, n_held), kept = is_true(held->lock, n_kept);
    held->descriptor = (int)number_in(field(held->lock, n_descriptor));
    if (PyErr_Occurred())
        return -1;
    if (inside || held->descriptor < 0)
        return 0;
    if (kept) {
        held->locked = 2;
        return PyDict_SetItem(held->lock, n_kept, Py_False) < 0 ? -1 : 1;
    }
    for (int tries = 0; tries < TRIES; tries++) {
        if (flock(held->descriptor, LOCK_EX | LOCK_NB) == 0) {
            held->locked = 2;
            return 1;
        }
        pause_briefly();
    }
    return 0;
}

/* No Python runs in here but the lock's own release: a signal handler would find the lock half given back. */
static int give_back(Held *held)
{
    PyObject *kind, *error, *trace, *answer;
    PyErr_Fetch(&kind, &error, &trace);
    if (held->locked == 2) {
        PyObject *alone = field(held->lock, n_alone);
        int keeps = alone && alone != Py_None && held->words && !held->words[W_SHARED];
        Py_XDECREF(alone);
        if (!keeps || PyDict_SetItem(held->lock, n_kept, Py_True) < 0)
            while (flock(held->descriptor, LOCK_UN) < 0 && errno == EINTR)
                ;
    }
    PyErr_Clear();
    if (held->locked) {
        answer = PyObject_CallNoArgs(held->release);
        Py_XDECREF(answer);
    }
    Py_CLEAR(held->lock);
    Py_CLEAR(held->release);
    held->locked = 0;
    if (kind) {
        PyErr_Clear();
        PyErr_Restore(kind, error, trace);
    }
    return PyErr_Occurred() ? -1 : 0;
}

#endif
