/* Numbers as Java writes them, and the steps that another process, or the next one after a kill, may see. */
#ifndef CHECKBACK_FAST_NUMBERS_H
#define CHECKBACK_FAST_NUMBERS_H

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "written for little-endian processors; without this module the Python does the same work"
#endif

static inline void put16(uint8_t *at, uint16_t value)
{
    value = __builtin_bswap16(value);
    memcpy(at, &value, sizeof value);
}

static inline void put32(uint8_t *at, uint32_t value)
{
    value = __builtin_bswap32(value);
    memcpy(at, &value, sizeof value);
}

static inline void put64(uint8_t *at, uint64_t value)
{
    value = __builtin_bswap64(value);
    memcpy(at, &value, sizeof value);
}

static inline uint32_t get32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap32(value);
}

static inline uint64_t get64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap64(value);
}

/* One move of an aligned number: all that was stored before it is visible before it, and nothing after it is moved up. */
static inline void publish64(void *at, uint64_t value)
{
    __atomic_store_n((uint64_t *)at, value, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static inline void publish32(void *at, uint32_t value)
{
    __atomic_store_n((uint32_t *)at, value, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static inline void publish8(uint8_t *at, uint8_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* Java's String.hashCode of ASCII, going on from `hash`. */
static inline uint32_t java_hash(uint32_t hash, const char *text, Py_ssize_t size)
{
    for (Py_ssize_t at = 0; at < size; at++)
        hash = 31 * hash + (uint8_t)text[at];
    return hash;
}

/* Java's Math.abs, and 0 for the one that it leaves negative. */
static inline uint32_t java_absolute(uint32_t hash)
{
    return hash == 0x80000000u ? 0 : hash >> 31 ? 0u - hash : hash;
}

#endif
