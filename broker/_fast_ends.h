/* Ends made of half messages: `end_draft` of broker/store/write/pending_record.py, `_commit` and `op_record` of
 * broker/store/engines/half_op.py, for the common case.
 */
#ifndef CHECKBACK_FAST_ENDS_H
#define CHECKBACK_FAST_ENDS_H

#include "_fast_record.h"

/* `end_draft`: the half message once more, of another type; a rollback without its body. */
static PyObject *state_table_end(const Stored *half, long long half_offset, int kind)
{
    uint32_t body = get32(half->raw + BODY_LENGTH_AT);
    if (body > half->size - BODY_AT - CRC_ITEM)
        Py_RETURN_NONE;
    Py_ssize_t size = (Py_ssize_t)half->size - (kind == TYPE_ROLLBACK ? (Py_ssize_t)body : 0);
    PyObject *raw = PyBytes_FromStringAndSize(NULL, size);
    if (!raw)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(raw);
    memcpy(at, half->raw, BODY_AT);
    memcpy(at + BODY_AT, half->raw + half->size - (size - BODY_AT), (size_t)(size - BODY_AT));
    if (kind == TYPE_ROLLBACK) {
        put32(at, (uint32_t)size);
        put32(at + BODY_CRC_AT, 0);
        put32(at + BODY_LENGTH_AT, 0);
    }
    at[SYS_FLAG_AT + 3] = (uint8_t)((at[SYS_FLAG_AT + 3] & ~0xC) | kind);
    put64(at + PREPARED_AT, (uint64_t)half_offset);
    return raw;
}

/* `_commit` of half_op.py: the message in its own topic and queue; `moved` is the length of the half topic's field. */
static PyObject *half_op_commit(const Stored *half, Text topic, long long queue_id, long long half_offset)
{
    uint32_t body = get32(half->raw + BODY_LENGTH_AT);
    long long topic_at = BODY_AT + (long long)body;
    if (topic_at >= half->size || topic.size > TOPIC_MAX)
        Py_RETURN_NONE;
    long long rest_at = topic_at + 1 + half->raw[topic_at], rest = half->size - rest_at;
    if (rest < CRC_ITEM)
        Py_RETURN_NONE;
    long long size = topic_at + 1 + topic.size + rest;
    PyObject *raw = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!raw)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(raw);
    memcpy(at, half->raw, (size_t)topic_at);
    at[topic_at] = (uint8_t)topic.size;
    memcpy(at + topic_at + 1, topic.text, (size_t)topic.size);
    memcpy(at + topic_at + 1 + topic.size, half->raw + rest_at, (size_t)rest);
    put32(at, (uint32_t)size);
    put32(at + QUEUE_ID_AT, (uint32_t)queue_id);
    at[SYS_FLAG_AT + 3] = (uint8_t)((at[SYS_FLAG_AT + 3] & ~0xC) | TYPE_COMMIT);
    put64(at + PREPARED_AT, (uint64_t)half_offset);
    return raw;
}

/* `op_record` of half_op.py: `model` is an op message without a body. */
static PyObject *half_op_op(PyObject *model, long long slot, long long now_ms)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", slot);
    Py_ssize_t whole = PyBytes_Size(model);
    PyObject *raw = PyBytes_FromStringAndSize(NULL, whole + length);
    if (!raw)
        return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AsString(raw);
    memcpy(at, PyBytes_AsString(model), BODY_AT);
    memcpy(at + BODY_AT, digits, (size_t)length);
    memcpy(at + BODY_AT + length, PyBytes_AsString(model) + BODY_AT, (size_t)(whole - BODY_AT));
    put32(at, (uint32_t)(whole + length));
    put32(at + BODY_CRC_AT, crc32_from(0, (const uint8_t *)digits, (size_t)length) & 0x7FFFFFFF);
    put64(at + BORN_AT, (uint64_t)now_ms);
    put32(at + BODY_LENGTH_AT, (uint32_t)length);
    return raw;
}

#endif
