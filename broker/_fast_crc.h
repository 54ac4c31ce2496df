/* CRC-32 of zlib and RocketMQ (polynomial 0xEDB88320), by carry-less multiplication where the processor has it.
 *
 * Source: "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009. The constants are
 * powers of x modulo the polynomial, bit-reflected. Elsewhere eight bytes a step, by tables.
 */
#ifndef CHECKBACK_FAST_CRC_H
#define CHECKBACK_FAST_CRC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint32_t crc_table[8][256];
static int crc_can_fold;

static void crc_init(void)
{
    for (int byte = 0; byte < 256; byte++) {
        uint32_t value = (uint32_t)byte;
        for (int bit = 0; bit < 8; bit++)
            value = value & 1 ? 0xEDB88320u ^ (value >> 1) : value >> 1;
        crc_table[0][byte] = value;
    }
    for (int byte = 0; byte < 256; byte++)
        for (int row = 1; row < 8; row++)
            crc_table[row][byte] = crc_table[0][crc_table[row - 1][byte] & 0xFF] ^ (crc_table[row - 1][byte] >> 8);
#if defined(__x86_64__)
    __builtin_cpu_init();
    crc_can_fold = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
}

#if defined(__x86_64__)
#define CRC_CLMUL __attribute__((target("pclmul,sse4.1")))

/* One step: what is held, moved on by the distance of `by`, and the next 16 bytes added. */
CRC_CLMUL static inline __m128i crc_moved(__m128i held, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(held, by, 0x00), high = _mm_clmulepi64_si128(held, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

CRC_CLMUL static inline __m128i crc_load(const uint8_t *at) { return _mm_loadu_si128((const __m128i *)at); }

/* `size` is at least 64 and a multiple of 16; `crc` and what is returned are not inverted. */
CRC_CLMUL static uint32_t crc_folded(const uint8_t *at, size_t size, uint32_t crc)
{
    const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4); /* x^(512-32), x^(512+32) */
    const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0); /* x^(128-32), x^(128+32) */
    const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124);             /* x^64 */
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_word = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i a = _mm_xor_si128(crc_load(at), _mm_cvtsi32_si128((int)crc));
    __m128i b = crc_load(at + 16), c = crc_load(at + 32), d = crc_load(at + 48);
    for (at += 64, size -= 64; size >= 64; at += 64, size -= 64) {
        a = crc_moved(a, by_64, crc_load(at));
        b = crc_moved(b, by_64, crc_load(at + 16));
        c = crc_moved(c, by_64, crc_load(at + 32));
        d = crc_moved(d, by_64, crc_load(at + 48));
    }
    a = crc_moved(crc_moved(crc_moved(a, by_16, b), by_16, c), by_16, d);
    for (; size >= 16; at += 16, size -= 16)
        a = crc_moved(a, by_16, crc_load(at));
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10)); /* 128 to 96 bits, then to 64 */
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low_word), by_8, 0x00));
    b = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_word), barrett, 0x10), low_word);
    a = _mm_xor_si128(a, _mm_clmulepi64_si128(b, barrett, 0x00));
    return (uint32_t)_mm_extract_epi32(a, 1);
}
#endif

/* What zlib.crc32(bytes, crc) returns. */
static uint32_t crc32_from(uint32_t crc, const uint8_t *at, size_t size)
{
    crc = ~crc;
#if defined(__x86_64__)
    if (crc_can_fold && size >= 64) {
        size_t folded = size & ~(size_t)15;
        crc = crc_folded(at, folded, crc);
        at += folded;
        size -= folded;
    }
#endif
    for (; size >= 8; at += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        crc = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^ crc_table[5][low >> 16 & 255]
            ^ crc_table[4][low >> 24] ^ crc_table[3][at[4]] ^ crc_table[2][at[5]] ^ crc_table[1][at[6]]
            ^ crc_table[0][at[7]];
    }
    for (; size; at++, size--)
        crc = crc_table[0][(crc ^ *at) & 255] ^ crc >> 8;
    return ~crc;
}

#endif
