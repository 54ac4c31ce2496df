/* The common append: `FastAppend` of broker/store/write/fast_append.py, with the append lock around it.
 *
 * Everything that can fail is looked up first; what is not the common case ends there, with nothing stored, and the
 * Python does it. Then come the steps, in the order of `Dispatcher.dispatch`. The interpreter's lock is never given
 * away between taking the append lock and releasing it, so that no thread of this process ever waits for a holder that
 * is not running.
 */
#ifndef CHECKBACK_FAST_APPEND_H
#define CHECKBACK_FAST_APPEND_H

#include "_fast_stored.h"

/* What a test build looks at behind each step: see tests/compiled_module.py. Nothing in any other. */
#ifdef CHECKBACK_STEPS
static PyObject *on_step;
static int stepped(const char *name)
{
    PyObject *answer = on_step ? PyObject_CallFunction(on_step, "s", name) : Py_NewRef(Py_None);
    Py_XDECREF(answer);
    return answer != NULL;
}
#define STEP(name) do { if (!stepped(name)) return -1; } while (0)
#else
#define STEP(name) do { } while (0)
#endif

/* ---- where the parts of a record go ---- */

/* The pair (base, memoryview) that a queue of files touched last: a borrowed map and where it begins. */
static int last_map(PyObject *queue, PyObject *name, long long *base, Py_buffer *view)
{
    PyObject *pair = field_of(queue, name);
    if (!pair)
        return -1;
    int failed = !PyTuple_Check(pair) || PyTuple_Size(pair) != 2;
    if (failed)
        PyErr_SetString(PyExc_TypeError, "a pair of a position and a map is needed");
    else {
        *base = PyLong_AsLongLong(PyTuple_GetItem(pair, 0));
        failed = PyErr_Occurred() || PyObject_GetBuffer(PyTuple_GetItem(pair, 1), view, PyBUF_WRITABLE) < 0;
    }
    Py_DECREF(pair);
    return failed ? -1 : 0;
}

/* Where `size` bytes at a position are in a map; NULL when they are not in it. */
static uint8_t *in_map(const Py_buffer *view, long long base, long long position, long long size, long long file_bytes)
{
    if (base < -(1LL << 62))
        return NULL;
    long long at = position - base;
    if (at < 0 || at > file_bytes - size || at > view->len - size)
        return NULL;
    return (uint8_t *)view->buf + at;
}

static void release(Held *held)
{
    Py_buffer *all[] = {&held->control, &held->cells, &held->log, &held->redo, &held->table, &held->index};
    for (size_t at = 0; at < sizeof all / sizeof *all; at++)
        if (all[at]->obj)
            PyBuffer_Release(all[at]);
}

/* Borrow the maps, and see that nothing is to be healed first: 1, 0 or -1. */
static int borrow(Append *self, Held *held)
{
    long long index_number = 0;
    if (PyObject_GetBuffer(self->control, &held->control, PyBUF_WRITABLE) < 0)
        return -1;
    if (held->control.len < 8 * W_COUNT)
        return 0;
    uint64_t *w = held->words = held->control.buf;
    if ((w[W_TAIL] | w[W_SLOTS] | w[W_REDO_UNITS]) >> 56 || w[W_TAIL] != w[W_INTENT] || w[W_TAIL] != w[W_DISPATCHED] || w[W_POISON])
        return 0; /* to be healed, or nonsense */
    if ((long long)w[W_GENERATION] != number_in(field_of(self->dispatcher, n_generation)))
        return PyErr_Occurred() ? -1 : 0;
    if (last_map(self->log, n_last, &held->log_base, &held->log) < 0
        || last_map(self->redo, n_last, &held->redo_base, &held->redo) < 0
        || last_map(self->table, n_last, &held->table_base, &held->table) < 0
        || last_map(self->index, n_newest, &index_number, &held->index) < 0
        || PyObject_GetBuffer(self->cells, &held->cells, PyBUF_WRITABLE) < 0)
        return -1;
    long long index_bytes = INDEX_HEAD + INDEX_SLOT * self->index_slots + ITEM * self->index_items;
    return index_number == (long long)w[W_INDEX] && index_number && held->index.len >= index_bytes;
}

/* Find the place of each part of one record: 1, 0 or -1. */
static int find_places(Append *self, Held *held, Stored *one, long long slots, long long units)
{
    if (one->kind && self->has_redo_log) {
        one->redo_at = in_map(&held->redo, held->redo_base, units * UNIT, UNIT, self->redo_bytes);
        if (!one->redo_at)
            return 0;
    } else if (one->kind & TYPE_PREPARED)
        return 0; /* no half message of the engine half-op, nor its end */
    if (one->kind == TYPE_PREPARED)
        one->queue_offset = slots;
    else if (one->kind == TYPE_ROLLBACK)
        one->queue_offset = one->slot;
    else {
        PyObject *cell = PyDict_GetItemWithError(self->known, one->key);
        PyObject *queue = cell ? PyDict_GetItemWithError(self->queues, cell) : NULL;
        if (!queue)
            return PyErr_Occurred() ? -1 : 0;
        long long number = PyLong_AsLongLong(cell), base;
        if (number < 0 || (number + 1) * CELL_WORDS * 8 > held->cells.len || last_map(queue, n_last, &base, &one->queue) < 0)
            return PyErr_Occurred() ? -1 : 0;
        one->cell = (uint64_t *)held->cells.buf + number * CELL_WORDS;
        if (*one->cell >> 56)
            return 0;
        one->queue_offset = (long long)*one->cell;
        one->unit_at = in_map(&one->queue, base, one->queue_offset * UNIT, UNIT, self->queue_bytes);
        if (!one->unit_at || !PyUnicode_Compare(PyTuple_GetItem(one->key, 0), self->schedule_topic) || PyErr_Occurred())
            return PyErr_Occurred() ? -1 : 0;
    }
    if (one->queue_offset < 0 || one->queue_offset >> 56)
        return 0;
    if (one->opens_slot) {
        one->slot_at = in_map(&held->table, held->table_base, one->queue_offset * SLOT, SLOT, self->table_bytes);
        return one->slot_at != NULL;
    }
    return 1;
}

/* The slot that an end names, if it is in the map of the table; NULL for any other. */
static uint8_t *slot_of(Append *self, Held *held, long long slot)
{
    if (slot < 0 || slot >= (long long)held->words[W_SLOTS])
        return NULL;
    return in_map(&held->table, held->table_base, slot * SLOT, SLOT, self->table_bytes);
}

/* ---- the steps ---- */

/* `place` of pending_record.py: the mark last. */
static void place(uint8_t *at, const Stored *one, long long commitlog_offset, long long store_ms)
{
    memcpy(at + MARK, one->raw + MARK, (size_t)(one->size - MARK));
    put64(at + QUEUE_OFFSET_AT, (uint64_t)one->queue_offset);
    put64(at + COMMITLOG_OFFSET_AT, (uint64_t)commitlog_offset);
    put64(at + STORE_TIME_AT, (uint64_t)store_ms);
    size_t covered = (size_t)(one->size - CRC_ITEM);
    uint32_t crc = crc32_from(crc32_from(0, one->raw, MARK), at + MARK, covered - MARK) & 0x7FFFFFFF;
    uint8_t *digits = at + one->size - 11; /* ten of them, the last first, and the byte that ends the property */
    for (int digit = 0; digit < 10; digit++, crc /= 10)
        digits[digit] = (uint8_t)('0' + crc % 10);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(at, one->raw, MARK);
}

static void put_unit(uint8_t *at, long long offset, long long size, long long tag)
{
    put64(at, (uint64_t)offset);
    put32(at + 8, (uint32_t)size);
    put64(at + 12, (uint64_t)tag);
}

/* `Dispatcher.settle`. */
static void settle(uint8_t *slot, long long half_offset, int kind)
{
    if (slot && get32(slot + 20) == TYPE_PREPARED && (half_offset == -1 || (long long)get64(slot) == half_offset)
        && (int32_t)get32(slot + 8) > 0)
        publish8(slot + SLOT_STATE_AT, (uint8_t)kind);
}

/* `IndexWriter._counted`. */
static int32_t counted(Append *self, const uint8_t *items, int32_t item, int32_t count)
{
    while (item >= count && item < self->index_items) {
        int32_t older = (int32_t)get32(items + (long long)ITEM * item + 16);
        item = older < item ? older : 0;
    }
    return item > 0 && item < count ? item : 0;
}

static uint8_t *index_slot(const Append *self, uint8_t *file, uint32_t code)
{
    return file + INDEX_HEAD + INDEX_SLOT * (long long)(code % (uint32_t)self->index_slots);
}

/* `IndexWriter.put_into`. */
static int put_index(Append *self, uint8_t *file, const Stored *one, long long offset, long long store_ms)
{
    int32_t used = (int32_t)get32(file + 32), count = (int32_t)get32(file + 36);
    long long begin_ms = (long long)get64(file);
    uint8_t *items = file + INDEX_HEAD + INDEX_SLOT * self->index_slots;
    if (count <= 1) {
        count = 1;
        begin_ms = store_ms;
        put64(file, (uint64_t)store_ms);
        put64(file + 16, (uint64_t)offset);
    }
    if ((long long)get64(file + 8) != store_ms)
        put64(file + 8, (uint64_t)store_ms);
    put64(file + 24, (uint64_t)offset);
    STEP("index header");
    long long after_s = begin_ms <= 0 || store_ms < begin_ms ? 0 : (store_ms - begin_ms) / 1000;
    for (int at = 0; at < one->code_count; at++, count++) {
        uint8_t *slot = index_slot(self, file, one->codes[at]);
        int32_t previous = (int32_t)get32(slot);
        if (previous <= 0 || previous >= count) {
            previous = previous > 0 ? counted(self, items, previous, count) : 0;
            used += !previous;
        }
        uint8_t *item = items + (long long)ITEM * count;
        put32(item, one->codes[at]);
        put64(item + 4, (uint64_t)offset);
        put32(item + 12, (uint32_t)(after_s > INT32_MAX ? INT32_MAX : after_s));
        put32(item + 16, (uint32_t)previous);
        STEP("index item");
        publish32(slot, __builtin_bswap32((uint32_t)count));
        STEP("index slot");
        uint8_t counts[8];
        uint64_t both;
        put32(counts, (uint32_t)used);
        put32(counts + 4, (uint32_t)(count + 1));
        memcpy(&both, counts, sizeof both);
        publish64(file + 32, both);
        STEP("index counts");
    }
    return 0;
}

/* `Dispatcher.dispatch`. */
static int dispatch(Append *self, Held *held, Stored *one, long long offset, long long store_ms)
{
    uint64_t *w = held->words;
    if (one->redo_at) {
        put_unit(one->redo_at, offset, one->size, one->kind == TYPE_PREPARED ? -1 : one->prepared_offset);
        STEP("redo unit");
        publish64(w + W_REDO_UNITS, w[W_REDO_UNITS] + 1);
        STEP("redo count");
    }
    if (one->unit_at) {
        put_unit(one->unit_at, offset, one->size, one->tags);
        STEP("queue unit");
        publish64(one->cell, (uint64_t)one->queue_offset + 1);
        STEP("queue count");
    }
    if (one->slot_at) {
        put64(one->slot_at, (uint64_t)offset);
        put32(one->slot_at + 8, (uint32_t)one->size);
        put32(one->slot_at + 12, (uint32_t)(store_ms / 1000));
        put32(one->slot_at + 16, (uint32_t)one->group);
        put32(one->slot_at + 20, TYPE_PREPARED);
        STEP("slot");
        publish64(w + W_SLOTS, (uint64_t)one->queue_offset + 1);
        STEP("slot count");
    }
    if (one->kind == TYPE_COMMIT || one->kind == TYPE_ROLLBACK)
        settle(slot_of(self, held, one->slot), one->prepared_offset, one->kind);
    for (int at = 0; at < one->ended_count; at++)
        settle(slot_of(self, held, one->ended[at]), -1, TYPE_ROLLBACK);
    STEP("settled");
    return one->code_count ? put_index(self, held->index.buf, one, offset, store_ms) : 0;
}

/* Whether the slots that this record settles can be looked at in the map: 1 or 0. */
static int settles_here(Append *self, Held *held, const Stored *one)
{
    if ((one->kind == TYPE_COMMIT || one->kind == TYPE_ROLLBACK) && !slot_of(self, held, one->slot))
        return 0;
    for (int at = 0; at < one->ended_count; at++)
        if (!slot_of(self, held, one->ended[at]))
            return 0;
    return 1;
}

static long long store_time(Append *self, Held *held)
{
    PyObject *now = PyObject_CallNoArgs(self->now_ns);
    long long ns = now ? PyLong_AsLongLong(now) : -1, ms = ns / 1000000;
    Py_XDECREF(now);
    long long seen_ms = number_in(field_of(self->clock, n_seen_ms));
    if (PyErr_Occurred())
        return -1;
    return ms < (long long)held->words[W_STORE_MS] || ms < seen_ms ? 0 : ms; /* 0: the wall clock was set back */
}

/* Whether a half message waits for its end in this slot; -1 for the slot of no decision. */
static int is_open(Append *self, Held *held, long long slot, long long half_offset)
{
    const uint8_t *found = slot_of(self, held, slot);
    return slot == -1
        || (found && get32(found + 20) == TYPE_PREPARED && (long long)get64(found) == half_offset
            && (int32_t)get32(found + 8) > 0);
}

/* Store one record or two, which come to exist at one instant: 1, 0 when nothing was stored, or -1.
 *
 * The lock is held. A decision is made if the half message still waits in its slot.
 */
static int store(
    Append *self, Held *held, Stored *all, int count, long long decided_slot, long long half_offset, long long *store_ms)
{
    int ready = borrow(self, held), codes = 0;
    if (ready <= 0)
        return ready;
    if (!is_open(self, held, decided_slot, half_offset))
        return 0;
    uint64_t *w = held->words;
    long long tail = (long long)w[W_TAIL], end = tail, slots = (long long)w[W_SLOTS], units = (long long)w[W_REDO_UNITS];
    for (int at = 0; at < count; at++) {
        ready = find_places(self, held, all + at, slots, units + at);
        if (ready <= 0 || !settles_here(self, held, all + at))
            return ready < 0 ? -1 : 0;
        end += all[at].size;
        codes += all[at].code_count;
    }
    uint8_t *log = in_map(&held->log, held->log_base, tail, end - tail, self->size_max);
    int32_t items = (int32_t)get32((uint8_t *)held->index.buf + 36);
    if (!log || items < 0 || (long long)items + codes >= self->index_items || (count == 2 && all[0].cell == all[1].cell))
        return 0;
    for (int at = 0; at < count; at++) /* far apart: to be there when the record is written */
        for (int code = 0; code < all[at].code_count; code++)
            __builtin_prefetch(index_slot(self, held->index.buf, all[at].codes[code]), 1);
    if ((*store_ms = store_time(self, held)) <= 0)
        return *store_ms < 0 ? -1 : 0;
    publish64(w + W_INTENT, (uint64_t)end);
    STEP("intent");
    if (count == 2) /* the last first: who reads on finds both or none */
        place(log + all[0].size, all + 1, tail + all[0].size, *store_ms);
    STEP("second record");
    place(log, all, tail, *store_ms);
    STEP("record");
    publish64(w + W_TAIL, (uint64_t)end);
    STEP("tail");
    publish64(w + W_STORE_MS, (uint64_t)*store_ms);
    STEP("store time");
    for (int at = 0; at < count; at++) {
        if (dispatch(self, held, all + at, tail, *store_ms) < 0)
            return -1;
        tail += all[at].size;
    }
    publish64(w + W_DISPATCHED, (uint64_t)end);
    STEP("dispatched");
    return 1;
}

/* With the lock taken and given back: 1, 0 when nothing was stored, or -1. `place` gets the CommitLog offset of the
 * first record and the store time. */
static int store_with_lock(Append *self, Stored *all, int count, long long decided_slot, long long half_offset,
                           long long place[2])
{
    Held held;
    memset(&held, 0, sizeof held);
    int done = take(self, &held);
    if (done == 1) {
        done = store(self, &held, all, count, decided_slot, half_offset, &place[1]);
        if (done == 1)
            for (place[0] = (long long)held.words[W_TAIL]; count > 0; count--)
                place[0] -= all[count - 1].size;
    }
    if (give_back(&held) < 0)
        done = -1;
    release(&held);
    return done;
}

#endif
