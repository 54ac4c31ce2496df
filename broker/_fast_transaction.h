/* End a half message, in one call.
 *
 * The reference: `Appender.append_one`, and the engine's `ends`.
 */
#ifndef CHECKBACK_FAST_TRANSACTION_H
#define CHECKBACK_FAST_TRANSACTION_H

#include "_fast_ends.h"
#include "_fast_half.h"

static PyObject *n_state, *n_again, *n_queue_offset;

/* The record that ends a half message, or two: 1, 0 when it is not for us, -1. `key` and the codes: where it is for. */
static int make_ends(Append *self, Stored *all, int *count, const Stored *half, PyObject *key, const uint32_t *codes,
                     int code_count, const long long place[2], int kind, long long now_ms)
{
    Stored *end = all, *op = kind == TYPE_COMMIT && !self->has_redo_log ? all + 1 : all;
    Text topic;
    *count = 1 + (op != all);
    if (self->has_redo_log || kind == TYPE_COMMIT) {
        if (!ascii_of(PyTuple_GetItem(key, 0), &topic))
            return 0;
        end->kind = kind;
        end->tags = half->tags;
        end->group = half->group;
        end->prepared_offset = place[0];
        end->slot = place[1];
        end->code_count = kind == TYPE_ROLLBACK ? 0 : code_count;
        memcpy(end->codes, codes, (size_t)end->code_count * sizeof *codes);
        end->key = Py_NewRef(key);
        end->owner = self->has_redo_log
            ? state_table_end(half, place[0], kind)
            : half_op_commit(half, topic, PyLong_AsLongLong(PyTuple_GetItem(key, 1)), place[0]);
    }
    if (!self->has_redo_log) {
        op->tags = self->op_tags;
        op->ended_count = 1;
        op->ended[0] = place[1];
        op->key = Py_NewRef(self->op_key);
        op->owner = half_op_op(self->op_model, place[1], now_ms);
    }
    for (int at = 0; at < *count; at++) {
        if (!all[at].owner || PyErr_Occurred())
            return -1;
        if (!PyBytes_Check(all[at].owner))
            return 0;
        all[at].raw = (const uint8_t *)PyBytes_AsString(all[at].owner);
        all[at].size = PyBytes_Size(all[at].owner);
    }
    return 1;
}

/* What the caller of a commit or rollback asked for. */
typedef struct {
    long long place[2]; /* of the half message: its CommitLog offset, its slot */
    int kind;
    long long now_ms;
    PyTypeObject *type; /* of the result */
    PyObject *state;
} Decision;

/* The last arguments of `end` and `end_kept`: 1, 0 when it is not for us, -1. */
static int read_decision(PyObject *offset, PyObject *slot, PyObject *const *rest, Decision *made)
{
    if (!PyType_Check(rest[2])) {
        PyErr_SetString(PyExc_TypeError, "an end needs the class of its result");
        return -1;
    }
    *made = (Decision){{PyLong_AsLongLong(offset), PyLong_AsLongLong(slot)}, (int)PyLong_AsLong(rest[0]),
                       PyLong_AsLongLong(rest[1]), (PyTypeObject *)rest[2], rest[3]};
    if (PyErr_Occurred())
        return -1;
    return (made->kind == TYPE_COMMIT || made->kind == TYPE_ROLLBACK) && made->place[1] >= 0;
}

/* `new_ended` of broker/transaction/ends.py. */
static PyObject *new_ended(const Decision *decision, long long commitlog_offset, long long queue_offset)
{
    PyObject *fields, *ended = new_object(decision->type, &fields);
    int failed = !fields || PyDict_SetItem(fields, n_state, decision->state) < 0
        || put_number(fields, n_commitlog_offset, commitlog_offset) || PyDict_SetItem(fields, n_again, Py_False) < 0;
    if (!failed)
        failed = decision->kind == TYPE_COMMIT ? put_number(fields, n_queue_offset, queue_offset)
                                               : PyDict_SetItem(fields, n_queue_offset, Py_None) < 0;
    Py_XDECREF(fields);
    if (failed)
        Py_CLEAR(ended);
    return ended;
}

/* End a half message: what the caller gets, None, or NULL with an error. */
static PyObject *end_half(Append *self, const Stored *half, PyObject *key, const uint32_t *codes, int code_count,
                          const Decision *decision)
{
    int records = 0;
    long long placed[2];
    const long long *place = decision->place;
    Stored all[2];
    memset(all, 0, sizeof all);
    int done = make_ends(self, all, &records, half, key, codes, code_count, place, decision->kind, decision->now_ms);
    if (done == 1)
        done = store_with_lock(self, all, records, place[1], place[0], placed);
    PyObject *ended = done < 0 ? NULL : done ? new_ended(decision, placed[0], all->queue_offset) : Py_NewRef(Py_None);
    unload(&all[0]);
    unload(&all[1]);
    return ended;
}

/* Where a PendingRecord is for: 1, 0 when it is not for us, -1. The key is a new reference. */
static int delivery_of(Append *self, PyObject *record, const Stored *half, int kind, PyObject **key, uint32_t *codes,
                       int *count)
{
    PyObject *target = PyObject_GetAttr(record, n_target), *items;
    int ready = target != NULL;
    *count = half->code_count;
    memcpy(codes, half->codes, sizeof half->codes);
    if (ready && target == Py_None) {
        ready = self->has_redo_log && (kind == TYPE_ROLLBACK || number_of(record, n_delay_queue) < 0);
        *key = Py_NewRef(half->key);
    } else if (ready) {
        ready = !self->has_redo_log && PyTuple_Check(target) && PyTuple_Size(target) == 4
            && PyLong_AsLong(PyTuple_GetItem(target, 3)) == 0;
        items = ready ? PyTuple_GetItem(target, 2) : NULL;
        ready = ready && PyTuple_Check(items) && PyTuple_Size(items) <= CODES_MAX;
        *count = ready ? (int)PyTuple_Size(items) : 0;
        for (int at = 0; at < *count; at++)
            codes[at] = (uint32_t)PyLong_AsLongLong(PyTuple_GetItem(items, at));
        *key = ready ? PyTuple_Pack(2, PyTuple_GetItem(target, 0), PyTuple_GetItem(target, 1)) : NULL;
    }
    Py_XDECREF(target);
    return PyErr_Occurred() ? -1 : ready;
}

/* end(half message as a PendingRecord, CommitLog offset, slot, kind, now_ms, Ended, state) -> Ended, or None */
static PyObject *Append_end(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Append *self = (Append *)object;
    if (count != 7)
        return PyErr_Format(PyExc_TypeError, "end takes 7 arguments, not %zd", count);
    Decision decision;
    int ready = read_decision(args[1], args[2], args + 3, &decision), code_count = 0;
    if (ready <= 0)
        return ready < 0 ? NULL : Py_NewRef(Py_None);
    Stored half;
    uint32_t codes[CODES_MAX];
    PyObject *key = NULL;
    memset(&half, 0, sizeof half);
    ready = load(args[0], &half);
    if (ready == 1)
        ready = delivery_of(self, args[0], &half, decision.kind, &key, codes, &code_count);
    PyObject *done = ready < 0 ? NULL
        : ready                ? end_half(self, &half, key, codes, code_count, &decision)
                               : Py_NewRef(Py_None);
    Py_XDECREF(key);
    unload(&half);
    return done;
}

/* end_kept(CommitLog offset, slot, producer group, kind, now_ms, Ended, state): of a half message that `half` stored */
static PyObject *Append_end_kept(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    Append *self = (Append *)object;
    if (count != 7)
        return PyErr_Format(PyExc_TypeError, "end_kept takes 7 arguments, not %zd", count);
    Decision decision;
    int ready = read_decision(args[0], args[1], args + 3, &decision);
    if (ready <= 0)
        return ready < 0 ? NULL : Py_NewRef(Py_None);
    Kept known = self->kept[decision.place[1] % CACHED]; /* a copy: another may take its place */
    if (!known.raw || known.offset != decision.place[0] || !PyUnicode_Check(args[2])
        || PyUnicode_Compare(known.producer_group, args[2]))
        Py_RETURN_NONE;
    Stored half;
    memset(&half, 0, sizeof half);
    half.owner = Py_NewRef(known.raw);
    half.key = Py_NewRef(known.key);
    half.raw = (const uint8_t *)PyBytes_AsString(known.raw);
    half.size = PyBytes_Size(known.raw);
    half.tags = known.tags;
    half.group = known.group;
    PyObject *done = end_half(self, &half, half.key, known.codes, known.code_count, &decision);
    unload(&half);
    return done;
}

#endif
