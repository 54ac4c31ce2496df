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
#include "_fast_files.h"
#include "_fast_flusher.h"
#include "_fast_index_items.h"
#include "_fast_plain.h"
#include "_fast_request.h"
#include "_fast_scan.h"
#include "_fast_sent.h"
#include "_fast_strings.h"
#include "_fast_transaction.h"

/* ---- Append ---- */

#define APPEND_OBJECTS(visit) \
    visit(lock) visit(control) visit(cells) visit(log) visit(dispatcher) visit(redo) visit(table) visit(queues) \
    visit(known) visit(index) visit(clock) visit(now_ns) visit(cached) visit(result) visit(tuple_new) \
    visit(schedule_topic) visit(half_key) visit(op_key) visit(op_model) visit(threads) visit(acquire) visit(release)

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
    for (int slot = 0; self->kept && slot < CACHED; slot++)
        forget(self->kept + slot);
    return 0;
}

static void Append_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Append_clear(object);
    PyMem_Free(((Append *)object)->kept);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *Append_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"lock", "control", "cells", "log", "dispatcher", "redo", "table", "queues", "known", "index",
                            "clock", "now_ns", "cached", "result", "schedule_topic", "half_key", "op_key", "op_model", "op_tags",
                            "size_max", "table_bytes", "redo_bytes", "queue_bytes", "index_slots", "index_items",
                            "has_redo_log", NULL};
    PyObject *o[18];
    long long n[7];
    int has_redo_log;
    if (!PyArg_ParseTupleAndKeywords(
            args, named, "OOOOOOOO!O!OOOO!OOOOOLLLLLLLp", names, o, o + 1, o + 2, o + 3, o + 4, o + 5, o + 6,
            &PyDict_Type, o + 7, &PyDict_Type, o + 8, o + 9, o + 10, o + 11, &PyList_Type, o + 12, o + 13, o + 14,
            o + 15, o + 16, o + 17, n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, &has_redo_log))
        return NULL;
    int has_op = PyTuple_Check(o[15]) && PyTuple_Size(o[15]) == 2 && PyTuple_Check(o[16]) && PyTuple_Size(o[16]) == 2
        && PyBytes_Check(o[17]) && PyBytes_Size(o[17]) >= BODY_AT + CRC_ITEM;
    if (PyList_Size(o[12]) != CACHED || n[5] < 1 || n[5] > 1 << 28 || n[6] < 1 || n[6] > 1 << 28
        || (!has_redo_log && !has_op))
        return PyErr_Format(PyExc_ValueError, "a size is out of range");
    Append *self = (Append *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    PyObject **at[] = {&self->lock, &self->control, &self->cells, &self->log, &self->dispatcher, &self->redo,
                       &self->table, &self->queues, &self->known, &self->index, &self->clock, &self->now_ns,
                       &self->cached, &self->result, &self->schedule_topic, &self->half_key, &self->op_key, &self->op_model};
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
    self->kept = PyMem_Calloc(CACHED, sizeof *self->kept);
    if (!self->tuple_new || !self->kept)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyMethodDef Append_methods[] = {
    {"append", Append_append, METH_O, "Append one record: an Appended, or None when nothing was stored."},
    {"send", (PyCFunction)(void (*)(void))Append_send, METH_FASTCALL, "Store a plain message: an Appended, or None."},
    {"prepare", (PyCFunction)(void (*)(void))Append_prepare, METH_FASTCALL, "Store a half message: a Half, or None."},
    {"end_kept", (PyCFunction)(void (*)(void))Append_end_kept, METH_FASTCALL, "End one of those: an Ended, or None."},
    {"end", (PyCFunction)(void (*)(void))Append_end, METH_FASTCALL, "End any half message: the same."},
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
    {"flusher", fast_flusher, METH_NOARGS, flusher_doc},
    {"flush_begin", (PyCFunction)(void (*)(void))fast_flush_begin, METH_FASTCALL, flush_begin_doc},
    {"flush_wait", fast_flush_wait, METH_O, flush_wait_doc},
    {"index_chains", fast_index_chains, METH_VARARGS, index_chains_doc},
    {"index_items", fast_index_items, METH_VARARGS, index_items_doc},
    {"java_hashes", fast_java_hashes, METH_VARARGS, java_hashes_doc},
    {"scan_window", fast_scan_window, METH_VARARGS, scan_window_doc},
    {"sent_records", (PyCFunction)(void (*)(void))fast_sent_records, METH_FASTCALL, sent_records_doc},
    {"stand", fast_stand, METH_O, stand_doc},
    {"start_write", (PyCFunction)(void (*)(void))fast_start_write, METH_FASTCALL, start_write_doc},
    {"string_codes", fast_string_codes, METH_VARARGS, string_codes_doc},
    {"draft", (PyCFunction)(void (*)(void))fast_draft, METH_FASTCALL, "A new record, or None."},
    {"message", (PyCFunction)(void (*)(void))fast_message, METH_FASTCALL, "Check a message: True, or None."},
    {"stored_properties", (PyCFunction)(void (*)(void))fast_stored_properties, METH_FASTCALL, "Those of a record."},
    {"request_message", (PyCFunction)(void (*)(void))fast_request_message, METH_FASTCALL, request_message_doc},
    {"request_end", fast_request_end, METH_O, request_end_doc},
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
        {&n_address, "address"}, {&n_port, "port"}, {&n_copy, "copy"},
        {&n_TRANSACTION_ID, "__transactionId__"}, {&n_REAL_TOPIC, "REAL_TOPIC"}, {&n_REAL_QID, "REAL_QID"},
        {&n_commitlog_offset, "commitlog_offset"}, {&n_producer_group, "producer_group"},
        {&n_unique_key, "unique_key"}, {&n_born_timestamp_ms, "born_timestamp_ms"},
        {&n_store_timestamp_ms, "store_timestamp_ms"}, {&n_size, "size"},
        {&n_state, "state"}, {&n_again, "again"}, {&n_queue_offset, "queue_offset"},
    };
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
        if (!*all[at].at)
            *all[at].at = PyUnicode_InternFromString(all[at].name);
        if (!*all[at].at)
            return -1;
    }
    for (int at = 0; at < LETTERS; at++) {
        char letter[2] = {(char)('a' + at), 0};
        if (!n_letters[at] && !(n_letters[at] = PyUnicode_InternFromString(letter)))
            return -1;
    }
    for (int at = 0; at < END_FIELDS; at++) {
        if (!n_end_fields[at] && !(n_end_fields[at] = PyUnicode_InternFromString(end_fields[at])))
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
