/* The scan's pass over a window of the CommitLog: from record to record, checks, columns, places of properties, CRCs.
 *
 * The reference is recovery/scan: framing.walk, Records.whole, its columns, Records.bad_crcs and Records.property_sums.
 */
#ifndef CHECKBACK_FAST_SCAN_H
#define CHECKBACK_FAST_SCAN_H

#include "_fast_arrays.h"
#include "_fast_crc.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* The columns, int64 each, in the order of recovery/scan/native/columns.py: COLUMNS. */
enum {
    COL_AT, COL_SIZE, COL_MAGIC, COL_BODY_CRC, COL_QUEUE_ID, COL_FLAG, COL_QUEUE_OFFSET, COL_OFFSET, COL_SYS_FLAG,
    COL_BORN_MS, COL_BORN_PORT, COL_STORE_MS, COL_STORE_PORT, COL_AGAIN, COL_PREPARED, COL_BODY_LENGTH, COL_BODY_AT,
    COL_TOPIC_AT, COL_TOPIC_LENGTH, COL_PROPERTIES_AT, COL_PROPERTIES_LENGTH, COL_TEXT_AT, COL_BAD_CRC,
    COL_PROPERTY_SUM, COL_COPIED_SUM, COLUMN_COUNT
};

enum { SCAN_END, SCAN_NO_ROOM, SCAN_NOT_WHOLE };
enum { WANT_CRC = 1, WANT_SUMS = 2, WANT_TEXTS = 4 };

#define SCAN_MAGIC_V1 0xDAA320A7u
#define SCAN_MAGIC_V2 0xDAA320ABu
#define RECORD_BYTES_MIN 91
#define SYS_BORN_IPV6 0x10
#define SYS_STORE_IPV6 0x20
#define CRC_ITEM_BYTES 20 /* name, separator, ten digits, separator */
#define CRC_NAME_BYTES 9
#define NAMES_MAX 16

static const uint8_t crc_name[CRC_NAME_BYTES] = {'_', '_', 'C', 'R', 'C', '3', '2', '#', 1};

struct wanted_name { const uint8_t *bytes; int64_t length; };

struct scan_call {
    const uint8_t *window;
    int64_t at, limit;
    uint64_t base;
    int64_t *columns;
    int64_t capacity, row;
    uint8_t *texts; /* of each record the topic and the properties, as they stand in it */
    int64_t texts_room, texts_used;
    const uint64_t *odd; /* by which copied fields are multiplied; NULL where their sum is not wanted */
    int wants, names;
    uint64_t lengths; /* bit n: a name of n (modulo 64) bytes is wanted */
    struct wanted_name name[NAMES_MAX];
};

/* The parts of one record, as places in it. */
struct record_parts {
    int64_t size, body_at, body_length, topic_at, topic_length, properties_at, properties_length;
    uint32_t magic, sys_flag;
};

/* Whether the bytes of a record of that size are one: a known magic, its own place, lengths that add up. */
static int record_is_whole(const uint8_t *at, int64_t size, uint64_t offset, struct record_parts *found)
{
    uint32_t magic = big32(at + 4), flags = big32(at + 36);
    if ((magic != SCAN_MAGIC_V1 && magic != SCAN_MAGIC_V2) || big64(at + 28) != offset)
        return 0;
    int64_t wide = magic == SCAN_MAGIC_V2 ? 2 : 1;
    int64_t body = 88 + (flags & SYS_BORN_IPV6 ? 12 : 0) + (flags & SYS_STORE_IPV6 ? 12 : 0);
    if (body + wide + 2 > size)
        return 0;
    int64_t body_length = (int32_t)big32(at + body - 4);
    if (body_length < 0 || body_length > size - body - wide - 2)
        return 0;
    int64_t topic = body + body_length + wide;
    int64_t topic_length = wide == 2 ? (int16_t)big16(at + topic - 2) : (int8_t)at[topic - 1];
    if (topic_length < 0 || topic_length > size - topic - 2)
        return 0;
    int64_t properties = topic + topic_length + 2;
    int64_t properties_length = (int16_t)big16(at + properties - 2);
    if (properties_length < 0 || properties + properties_length != size)
        return 0;
    *found = (struct record_parts){
        size, body, body_length, topic, topic_length, properties, properties_length, magic, flags};
    return 1;
}

/* A last property with no more than one byte wrong in it is a record CRC that was damaged. */
static int record_crc_is_bad(const uint8_t *at, const struct record_parts *parts)
{
    if (parts->properties_length < CRC_ITEM_BYTES)
        return 0;
    const uint8_t *item = at + parts->size - CRC_ITEM_BYTES;
    if (memcmp(item, crc_name, 4) && memcmp(item + 4, crc_name + 4, 4))
        return 0;
    int faults = item[CRC_ITEM_BYTES - 1] != 2;
    uint64_t stated = 0;
    for (int place = 0; place < CRC_NAME_BYTES; place++)
        faults += item[place] != crc_name[place];
    for (int place = CRC_ITEM_BYTES - 2; place >= CRC_NAME_BYTES; place--) { /* the least significant digit is first */
        faults += item[place] < '0' || item[place] > '9';
        stated = stated * 10 + (uint8_t)(item[place] - '0');
    }
    if (faults > 1)
        return 0;
    return faults || stated != (crc32_from(0, at, (size_t)(parts->size - CRC_ITEM_BYTES)) & 0x7FFFFFFF);
}

static int record_is_bad(const uint8_t *at, const struct record_parts *parts)
{
    uint32_t crc = crc32_from(0, at + parts->body_at, (size_t)parts->body_length) & 0x7FFFFFFF;
    return crc != big32(at + 8) || record_crc_is_bad(at, parts);
}

/* The sum of the bytes of the properties, each less the 2 that ends an item, without the item of the record CRC. */
static uint32_t property_sum(const uint8_t *at, int64_t length)
{
    if (length >= CRC_ITEM_BYTES && !memcmp(at + length - CRC_ITEM_BYTES, crc_name, CRC_NAME_BYTES))
        length -= CRC_ITEM_BYTES;
    uint32_t sum = 0;
    int64_t place = 0;
#if defined(__SSE2__)
    __m128i sums = _mm_setzero_si128();
    const __m128i two = _mm_set1_epi8(2);
    for (; place + 16 <= length; place += 16) {
        __m128i bytes = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)(at + place)), two);
        sums = _mm_add_epi64(sums, _mm_sad_epu8(bytes, _mm_setzero_si128()));
    }
    sum = (uint32_t)_mm_cvtsi128_si32(sums) + (uint32_t)_mm_cvtsi128_si32(_mm_srli_si128(sums, 8));
#endif
    for (; place < length; place++)
        sum += (uint8_t)(at[place] - 2);
    return sum;
}

/* Of each wanted property its place in the texts and its length; 0 and 0 where it is missing or empty.
 *
 * Items end at 2, the name of one at the first 1 in it; of several of a name the last that is not empty counts.
 */
static void find_properties(const struct scan_call *call, int64_t begin, int64_t length, int64_t *column)
{
    for (int number = 0; number < 2 * call->names; number++)
        column[number * call->capacity] = 0;
    const uint8_t *texts = call->texts;
    int64_t stop = begin + length;
    while (begin < stop) {
        int64_t at = begin;
        while (at < stop && (uint8_t)(texts[at] - 1) > 1)
            at++;
        int64_t name_length = at - begin;
        if (at >= stop || texts[at] == 2) { /* an item without a name's end is none */
            begin = at + 1;
            continue;
        }
        const uint8_t *end = memchr(texts + at, 2, (size_t)(stop - at));
        int64_t value = at + 1, value_end = end ? end - texts : stop;
        if (value_end > value && call->lengths >> (name_length & 63) & 1)
            for (int number = 0; number < call->names; number++)
                if (call->name[number].length == name_length
                    && !memcmp(call->name[number].bytes, texts + begin, (size_t)name_length)) {
                    column[2 * number * call->capacity] = value;
                    column[(2 * number + 1) * call->capacity] = value_end - value;
                }
        begin = value_end + 1;
    }
}

/* The sum over the fields that an end copies from its half message, each times an odd number; those of the words of the
 * addresses begin at these. The reference is recovery/transactions/fingerprint.py. */
#define BORN_ODD 16
#define STORE_ODD 32
#define ODD_COUNT 64
#define TRANSACTION_BITS 0xC

static uint64_t address_sum(const uint8_t *at, int bytes, const uint64_t *odd)
{
    uint64_t sum = 0;
    for (int word = 0; word < bytes / 4; word++, at += 4)
        sum += odd[word] * ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
    return sum;
}

static inline uint64_t signed32(const uint8_t *at) { return (uint64_t)(int64_t)(int32_t)big32(at); }

static uint64_t copied_sum(const uint8_t *at, uint32_t flags, const uint64_t *odd)
{
    int born = flags & SYS_BORN_IPV6 ? 16 : 4, store = flags & SYS_STORE_IPV6 ? 16 : 4;
    const uint8_t *born_port = at + 48 + born, *store_port = born_port + 12 + store;
    return odd[0] * signed32(at + 16) + odd[1] * big64(at + 40) + odd[2] * signed32(born_port)
         + odd[3] * signed32(store_port) + odd[4] * signed32(store_port + 4)
         + odd[5] * (signed32(at + 36) & ~(uint64_t)TRANSACTION_BITS) + address_sum(at + 48, born, odd + BORN_ODD)
         + address_sum(born_port + 12, store, odd + STORE_ODD);
}

static void put_record(struct scan_call *call, const struct record_parts *parts)
{
    const uint8_t *at = call->window + call->at, *middle = at + parts->body_at - 16;
    const uint8_t *born = at + 48 + (parts->sys_flag & SYS_BORN_IPV6 ? 16 : 4);
    int64_t *row = call->columns + call->row, place = call->at, step = call->capacity;
    row[COL_AT * step] = place;
    row[COL_SIZE * step] = parts->size;
    row[COL_MAGIC * step] = (int32_t)parts->magic;
    row[COL_BODY_CRC * step] = (int32_t)big32(at + 8);
    row[COL_QUEUE_ID * step] = (int32_t)big32(at + 12);
    row[COL_FLAG * step] = (int32_t)big32(at + 16);
    row[COL_QUEUE_OFFSET * step] = (int64_t)big64(at + 20);
    row[COL_OFFSET * step] = (int64_t)(call->base + (uint64_t)place);
    row[COL_SYS_FLAG * step] = (int32_t)parts->sys_flag;
    row[COL_BORN_MS * step] = (int64_t)big64(at + 40);
    row[COL_BORN_PORT * step] = (int32_t)big32(born);
    row[COL_STORE_MS * step] = (int64_t)big64(born + 4);
    row[COL_STORE_PORT * step] = (int32_t)big32(middle - 4);
    row[COL_AGAIN * step] = (int32_t)big32(middle);
    row[COL_PREPARED * step] = (int64_t)big64(middle + 4);
    row[COL_BODY_LENGTH * step] = parts->body_length;
    row[COL_BODY_AT * step] = place + parts->body_at;
    row[COL_TOPIC_AT * step] = place + parts->topic_at;
    row[COL_TOPIC_LENGTH * step] = parts->topic_length;
    row[COL_PROPERTIES_AT * step] = place + parts->properties_at;
    row[COL_PROPERTIES_LENGTH * step] = parts->properties_length;
    if (call->wants & WANT_CRC)
        row[COL_BAD_CRC * step] = record_is_bad(at, parts);
    if (call->wants & WANT_SUMS)
        row[COL_PROPERTY_SUM * step] = property_sum(at + parts->properties_at, parts->properties_length);
    if (call->odd)
        row[COL_COPIED_SUM * step] = (int64_t)copied_sum(at, parts->sys_flag, call->odd);
    if (call->wants & WANT_TEXTS) {
        int64_t text = call->texts_used, head = parts->topic_length + 2;
        memcpy(call->texts + text, at + parts->topic_at, (size_t)(head + parts->properties_length));
        row[COL_TEXT_AT * step] = text;
        call->texts_used += head + parts->properties_length;
        if (call->names)
            find_properties(call, text + head, parts->properties_length, row + COLUMN_COUNT * step);
    }
}

/* Walk from call->at on; a record that reaches beyond call->limit ends the walk before it. */
static int scan_records(struct scan_call *call)
{
    while (call->limit - call->at >= RECORD_BYTES_MIN) {
        const uint8_t *at = call->window + call->at;
        int64_t size = (int32_t)big32(at);
        struct record_parts parts;
        if (size < RECORD_BYTES_MIN || size > call->limit - call->at)
            return SCAN_END;
        if (!record_is_whole(at, size, call->base + (uint64_t)call->at, &parts))
            return SCAN_NOT_WHOLE;
        if (call->row >= call->capacity
            || (call->wants & WANT_TEXTS && call->texts_room - call->texts_used < size - parts.topic_at))
            return SCAN_NO_ROOM;
        put_record(call, &parts);
        call->row++;
        call->at += size;
    }
    return SCAN_END;
}

static int take_names(struct scan_call *call, PyObject *names)
{
    Py_ssize_t count = PyTuple_Size(names);
    if (count < 0)
        return 0;
    if (count > NAMES_MAX) {
        PyErr_Format(PyExc_ValueError, "at most %d names, not %zd", NAMES_MAX, count);
        return 0;
    }
    for (call->names = 0; call->names < count; call->names++) {
        char *bytes;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(names, call->names), &bytes, &length) < 0)
            return 0;
        call->name[call->names] = (struct wanted_name){(const uint8_t *)bytes, length};
        call->lengths |= (uint64_t)1 << (length & 63);
    }
    return 1;
}

static const char scan_window_doc[] =
    "scan_window(window, at, limit, base, columns, row, texts, used, wants, names, odd) -> (rows, used, at, stop)\n\n"
    "Walk the records of window[at:limit] into the int64 columns from a row on. `base` is the CommitLog offset of the\n"
    "window's first byte; wants: 1 CRCs, 2 sums of properties, 4 topics and properties behind the `used` bytes of\n"
    "`texts`, with the places there of the properties of these `names`; `odd`: 64 uint64, by which copied fields are\n"
    "multiplied, or b''. stop: 0 no further record lies whole below the limit, 1 there is no more room, 2 what begins\n"
    "there is no record.";

static PyObject *fast_scan_window(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer buffer[4];
    PyObject *names;
    long long at, limit, base, row, used;
    struct scan_call call = {0};
    if (!PyArg_ParseTuple(args, "y*LLLw*Lw*LiO!y*:scan_window", &buffer[0], &at, &limit, &base, &buffer[1], &row,
                          &buffer[2], &used, &call.wants, &PyTuple_Type, &names, &buffer[3]))
        return NULL;
    PyObject *result = NULL;
    if (!take_names(&call, names))
        goto done;
    int64_t width = COLUMN_COUNT + 2 * call.names;
    call.capacity = buffer[1].len / 8 / width;
    if (!array_holds(&buffer[1], "columns", call.capacity * width, 8)
        || (buffer[3].len && !array_holds(&buffer[3], "odd", ODD_COUNT, 8)))
        goto done;
    if (at < 0 || at > limit || limit > buffer[0].len || row < 0 || row > call.capacity || used < 0
        || used > buffer[2].len) {
        PyErr_SetString(PyExc_ValueError, "at and limit must lie in the window, row in the columns, used in the texts");
        goto done;
    }
    call.texts = buffer[2].buf, call.texts_room = buffer[2].len, call.texts_used = used;
    call.odd = buffer[3].len ? buffer[3].buf : NULL;
    call.window = buffer[0].buf;
    call.columns = buffer[1].buf;
    call.at = at, call.limit = limit, call.base = (uint64_t)base, call.row = row;
    int stop;
    Py_BEGIN_ALLOW_THREADS
    stop = scan_records(&call);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("(LLLi)", (long long)call.row, (long long)call.texts_used, (long long)call.at, stop);
done:
    arrays_release(buffer, 4);
    return result;
}

#endif
