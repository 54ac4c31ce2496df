/* The compiled twins of a few hot functions; the Python beside each is the reference, and does what is uncommon.
 *
 * Built against the limited API of CPython 3.11: one file for all later versions of a platform. A function returns None
 * when the Python has to do the work: then it has changed nothing. See broker/compiled.py.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdio.h>
#include <structmember.h>

#include "_fast_crc.h"
#include "_fast_digest.h"
#include "_fast_index_items.h"
#include "_fast_message.h"
#include "_fast_record.h"
#include "_fast_scan.h"
#include "_fast_strings.h"

/* ---- Append ---- */

static PyObject *appended(Append *self, const Stored *one, long long offset, long long store_ms)
{
    PyObject *fields = Py_BuildValue("(LLLL)", offset, one->queue_offset, one->size, store_ms);
    PyObject *made = fields ? PyObject_CallFunctionObjArgs(self->tuple_new, self->result, fields, NULL) : NULL;
    Py_XDECREF(fields);
    return made;
}

/* With the lock taken and given back: an Appended, None, or NULL with an error. */
static PyObject *append_all(Append *self, Stored *all, int count, long long decided_slot, long long half_offset)
{
    Held held;
    memset(&held, 0, sizeof held);
    long long store_ms = 0, offset = 0;
    int done = take(self, &held);
    if (done == 1) {
        done = store(self, &held, all, count, decided_slot, half_offset, &store_ms);
        if (done == 1)
            for (offset = (long long)held.words[W_TAIL]; count > 0; count--)
                offset -= all[count - 1].size;
    }
    if (give_back(self, &held) < 0)
        done = -1;
    release(&held);
    if (done == 1)
        return appended(self, all, offset, store_ms);
    return done < 0 ? NULL : Py_NewRef(Py_None);
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
    PyObject *done = loaded < 0 ? NULL : loaded ? append_all(self, &one, 1, -1, 0) : Py_NewRef(Py_None);
    if (done && remember(self, record, &one, done) < 0)
        Py_CLEAR(done);
    unload(&one);
    return done;
}

/* The parts of an end: 1, 0 when it is not for us, -1. `all` gets one record or two. */
static int make_ends(Append *self, Stored *all, int *count, PyObject *half, Stored *from, long long place[2], int kind,
                     long long now_ms)
{
    PyObject *target = PyObject_GetAttr(half, n_target), *key = NULL;
    Stored *end = all, *op = kind == TYPE_COMMIT ? all + 1 : all;
    Text topic;
    int ready = target != NULL;
    if (ready && target == Py_None) {
        ready = self->has_redo_log && (kind == TYPE_ROLLBACK || number_of(half, n_delay_queue) < 0);
        *end = *from; /* `from` lives longer */
        end->kind = kind;
        end->opens_slot = 0;
        end->prepared_offset = place[0];
        end->slot = place[1];
        end->code_count = kind == TYPE_ROLLBACK ? 0 : from->code_count;
        end->key = Py_NewRef(from->key);
        end->owner = ready ? state_table_end(from, place[0], kind) : NULL;
        *count = 1;
    } else if (ready) {
        ready = !self->has_redo_log && PyTuple_Check(target) && PyTuple_Size(target) == 4
            && ascii_of(PyTuple_GetItem(target, 0), &topic) && PyLong_AsLong(PyTuple_GetItem(target, 3)) == 0;
        if (ready && kind == TYPE_COMMIT) {
            long long codes[CODES_MAX];
            key = PyTuple_GetItem(target, 2);
            end->code_count = PyTuple_Check(key) && PyTuple_Size(key) <= CODES_MAX ? (int)PyTuple_Size(key) : -1;
            for (int at = 0; at < end->code_count; at++) {
                codes[at] = PyLong_AsLongLong(PyTuple_GetItem(key, at));
                end->codes[at] = (uint32_t)codes[at];
            }
            ready = end->code_count >= 0;
            end->kind = kind;
            end->tags = from->tags;
            end->prepared_offset = place[0];
            end->slot = place[1];
            end->queue_id = PyLong_AsLongLong(PyTuple_GetItem(target, 1));
            end->key = PyTuple_Pack(2, PyTuple_GetItem(target, 0), PyTuple_GetItem(target, 1));
            end->owner = ready ? half_op_commit(from, topic, end->queue_id, place[0]) : NULL;
        }
        if (ready) {
            op->tags = self->op_tags;
            op->ended_count = 1;
            op->ended[0] = place[1];
            op->key = Py_NewRef(self->op_key);
            op->owner = half_op_op(self->op_model, place[1], now_ms);
        }
        *count = kind == TYPE_COMMIT ? 2 : 1;
    }
    Py_XDECREF(target);
    if (PyErr_Occurred())
        return -1;
    for (int at = 0; ready && at < *count; at++) {
        if (!all[at].owner || !all[at].key)
            return -1;
        ready = PyBytes_Check(all[at].owner);
        if (ready) {
            all[at].raw = (const uint8_t *)PyBytes_AsString(all[at].owner);
            all[at].size = PyBytes_Size(all[at].owner);
        }
    }
    return ready;
}

static PyObject *Append_end(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Append *self = (Append *)object;
    if (count != 5)
        return PyErr_Format(PyExc_TypeError, "end takes 5 arguments, not %zd", count);
    long long place[2] = {PyLong_AsLongLong(args[1]), PyLong_AsLongLong(args[2])}, now_ms = PyLong_AsLongLong(args[4]);
    int kind = (int)PyLong_AsLong(args[3]), records = 0;
    if (PyErr_Occurred())
        return NULL;
    if ((kind != TYPE_COMMIT && kind != TYPE_ROLLBACK) || place[1] < 0)
        Py_RETURN_NONE;
    Stored half, all[2];
    memset(&half, 0, sizeof half);
    memset(all, 0, sizeof all);
    int ready = load(args[0], &half);
    if (ready == 1)
        ready = make_ends(self, all, &records, args[0], &half, place, kind, now_ms);
    PyObject *done = NULL;
    if (ready == 1)
        done = append_all(self, all, records, place[1], place[0]);
    else if (ready == 0)
        done = Py_NewRef(Py_None);
    unload(&all[0]);
    unload(&all[1]);
    unload(&half);
    return done;
}

#define APPEND_OBJECTS(visit) \
    visit(lock) visit(control) visit(cells) visit(log) visit(dispatcher) visit(redo) visit(table) visit(queues) \
    visit(known) visit(index) visit(clock) visit(now_ns) visit(cached) visit(result) visit(tuple_new) \
    visit(schedule_topic) visit(op_key) visit(op_model)

static int Append_traverse(PyObject *object, visitproc visit, void *arg)
{
    Append *self = (Append *)object;
    Py_VISIT(Py_TYPE(object));
#define VISIT(name) Py_VISIT(self->name);
    APPEND_OBJECTS(VISIT)
    return 0;
}

static int Append_clear(PyObject *object)
{
    Append *self = (Append *)object;
#define CLEAR(name) Py_CLEAR(self->name);
    APPEND_OBJECTS(CLEAR)
    return 0;
}

static void Append_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Append_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *Append_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"lock", "control", "cells", "log", "dispatcher", "redo", "table", "queues", "known", "index",
                            "clock", "now_ns", "cached", "result", "schedule_topic", "op_key", "op_model", "op_tags",
                            "size_max", "table_bytes", "redo_bytes", "queue_bytes", "index_slots", "index_items",
                            "has_redo_log", NULL};
    PyObject *o[17];
    long long n[7];
    int has_redo_log;
    if (!PyArg_ParseTupleAndKeywords(
            args, named, "OOOOOOOO!O!OOOO!OOOOLLLLLLLp", names, o, o + 1, o + 2, o + 3, o + 4, o + 5, o + 6,
            &PyDict_Type, o + 7, &PyDict_Type, o + 8, o + 9, o + 10, o + 11, &PyList_Type, o + 12, o + 13, o + 14,
            o + 15, o + 16, n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, &has_redo_log))
        return NULL;
    int has_op = PyTuple_Check(o[15]) && PyTuple_Size(o[15]) == 2 && PyBytes_Check(o[16])
        && PyBytes_Size(o[16]) >= BODY_AT + CRC_ITEM;
    if (PyList_Size(o[12]) != CACHED || n[5] < 1 || n[5] > 1 << 28 || n[6] < 1 || n[6] > 1 << 28
        || (!has_redo_log && !has_op))
        return PyErr_Format(PyExc_ValueError, "a size is out of range");
    Append *self = (Append *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    PyObject **at[] = {&self->lock, &self->control, &self->cells, &self->log, &self->dispatcher, &self->redo,
                       &self->table, &self->queues, &self->known, &self->index, &self->clock, &self->now_ns,
                       &self->cached, &self->result, &self->schedule_topic, &self->op_key, &self->op_model};
    for (size_t each = 0; each < sizeof at / sizeof *at; each++)
        *at[each] = Py_NewRef(o[each]);
    self->tuple_new = PyObject_GetAttrString((PyObject *)&PyTuple_Type, "__new__");
    self->op_tags = n[0];
    self->size_max = n[1];
    self->table_bytes = n[2];
    self->redo_bytes = n[3];
    self->queue_bytes = n[4];
    self->index_slots = n[5];
    self->index_items = n[6];
    self->has_redo_log = has_redo_log;
    if (!self->tuple_new)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyMethodDef Append_methods[] = {
    {"append", Append_append, METH_O, "Append one record: an Appended, or None when nothing was stored."},
    {"end", (PyCFunction)(void (*)(void))Append_end, METH_FASTCALL, "End a half message: the same."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot Append_slots[] = {
    {Py_tp_new, (void *)Append_new}, {Py_tp_dealloc, (void *)Append_dealloc}, {Py_tp_traverse, (void *)Append_traverse},
    {Py_tp_clear, (void *)Append_clear}, {Py_tp_methods, Append_methods}, {0, NULL}};
static PyType_Spec Append_spec = {
    "broker._fast.Append", sizeof(Append), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, Append_slots};

/* ---- the module ---- */

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

#ifdef CHECKBACK_STEPS
static PyObject *fast_watch(PyObject *module, PyObject *function)
{
    (void)module;
    Py_XDECREF(on_step);
    on_step = function == Py_None ? NULL : Py_NewRef(function);
    Py_RETURN_NONE;
}
#endif

static PyMethodDef methods[] = {
    {"crc32", fast_crc32, METH_O, "The CRC-32 of bytes."},
    {"digest_sums", fast_digest_sums, METH_VARARGS, digest_sums_doc},
    {"index_items", fast_index_items, METH_VARARGS, index_items_doc},
    {"java_hashes", fast_java_hashes, METH_VARARGS, java_hashes_doc},
    {"scan_window", fast_scan_window, METH_VARARGS, scan_window_doc},
    {"string_codes", fast_string_codes, METH_VARARGS, string_codes_doc},
    {"draft", (PyCFunction)(void (*)(void))fast_draft, METH_FASTCALL, "A new record, or None."},
    {"message", (PyCFunction)(void (*)(void))fast_message, METH_FASTCALL, "Check a message: True, or None."},
    {"stored_properties", (PyCFunction)(void (*)(void))fast_stored_properties, METH_FASTCALL, "Those of a record."},
    {"index_codes", (PyCFunction)(void (*)(void))fast_index_codes, METH_FASTCALL, "What the index holds, or None."},
#ifdef CHECKBACK_STEPS
    {"watch", fast_watch, METH_O, "Call this behind each step of an append, with its name."},
#endif
    {NULL, NULL, 0, NULL},
};

static int intern_names(void)
{
    struct {
        PyObject **at;
        const char *name;
    } all[] = {
        {&n_raw, "raw"}, {&n_topic, "topic"}, {&n_queue_id, "queue_id"}, {&n_kind, "kind"}, {&n_tags_code, "tags_code"},
        {&n_group_hash, "group_hash"}, {&n_index_codes, "index_codes"}, {&n_prepared_offset, "prepared_offset"},
        {&n_slot, "slot"}, {&n_target, "target"}, {&n_ended, "ended"}, {&n_last, "last"}, {&n_newest, "newest"},
        {&n_generation, "generation"}, {&n_seen_ms, "seen_ms"}, {&n_threads, "_threads"}, {&n_held, "_held"},
        {&n_kept, "_kept"}, {&n_alone, "_alone"}, {&n_descriptor, "_descriptor"}, {&n_acquire, "acquire"},
        {&n_release, "release"}, {&n_delay_queue, "delay_queue"}, {&n_body, "body"}, {&n_tag, "tag"}, {&n_keys, "keys"},
        {&n_properties, "properties"}, {&n_TAGS, "TAGS"}, {&n_KEYS, "KEYS"}, {&n_UNIQ_KEY, "UNIQ_KEY"},
        {&n_TRAN_MSG, "TRAN_MSG"}, {&n_PGROUP, "PGROUP"}, {&n_true, "true"}, {&n_blank, " "},
    };
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
        if (!*all[at].at)
            *all[at].at = PyUnicode_InternFromString(all[at].name);
        if (!*all[at].at)
            return -1;
    }
    return 0;
}

static int fast_exec(PyObject *module)
{
    crc_init();
    PyObject *sources = PyLong_FromUnsignedLong(CHECKBACK_SOURCES);
    int added = sources ? PyModule_AddObjectRef(module, "sources", sources) : -1;
    Py_XDECREF(sources);
    if (added < 0 || intern_names() < 0)
        return -1;
    PyObject *type = PyType_FromSpec(&Append_spec);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Append", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)fast_exec}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "broker._fast", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__fast(void) { return PyModuleDef_Init(&definition); }
