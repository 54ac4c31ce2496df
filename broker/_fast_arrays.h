/* Arrays that Python hands over: contiguous buffers, with a length that is compared before any byte is touched.
 *
 * They belong to the call while it lasts: the GIL is released meanwhile, so nothing here trusts a value twice.
 */
#ifndef CHECKBACK_FAST_ARRAYS_H
#define CHECKBACK_FAST_ARRAYS_H

#include <Python.h>
#include <stdint.h>

static inline uint32_t big16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }
static inline uint32_t big32(const uint8_t *at) { return big16(at) << 16 | big16(at + 2); }
static inline uint64_t big64(const uint8_t *at) { return (uint64_t)big32(at) << 32 | big32(at + 4); }

/* Whether `array` holds `count` values of `size` bytes, aligned; else an error is set. */
static int array_holds(const Py_buffer *array, const char *name, int64_t count, int64_t size)
{
    if (count < 0 || array->len % size || array->len / size != count || (uintptr_t)array->buf % (uintptr_t)size) {
        PyErr_Format(PyExc_ValueError, "%s must hold %lld aligned values of %lld bytes, and has %zd bytes", name,
                     (long long)count, (long long)size, array->len);
        return 0;
    }
    return 1;
}

static void arrays_release(Py_buffer *arrays, int count)
{
    for (int number = 0; number < count; number++)
        PyBuffer_Release(&arrays[number]);
}

/* Whether data[start : start + length] lies inside. */
static inline int span_fits(int64_t start, int64_t length, int64_t size)
{
    return start >= 0 && length >= 0 && start <= size && length <= size - start;
}

#endif
