/* The digest of transactions: a sum over the first half of SHA-256 of each.
 *
 * The reference is recovery/transactions/digest.py: Digest.add_many. SHA-256 as in FIPS 180-4.
 */
#ifndef CHECKBACK_FAST_DIGEST_H
#define CHECKBACK_FAST_DIGEST_H

#include <string.h>

#include "_fast_arrays.h"

#define ENTRY_BYTES 26

static const uint32_t sha_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2};

static inline uint32_t sha_turn(uint32_t word, int by) { return word >> by | word << (32 - by); }

static void sha_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = big32(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        uint32_t old = w[i - 15], late = w[i - 2];
        w[i] = w[i - 16] + (sha_turn(old, 7) ^ sha_turn(old, 18) ^ old >> 3) + w[i - 7]
             + (sha_turn(late, 17) ^ sha_turn(late, 19) ^ late >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (sha_turn(s[4], 6) ^ sha_turn(s[4], 11) ^ sha_turn(s[4], 25))
                     + ((s[4] & s[5]) ^ (~s[4] & s[6])) + sha_constants[i] + w[i];
        uint32_t two = (sha_turn(s[0], 2) ^ sha_turn(s[0], 13) ^ sha_turn(s[0], 22))
                     + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        s[7] = s[6], s[6] = s[5], s[5] = s[4], s[4] = s[3] + one;
        s[3] = s[2], s[2] = s[1], s[1] = s[0], s[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

/* One message in pieces: `held` bytes of a block wait in `block`. */
struct sha { uint32_t state[8]; uint8_t block[64]; int held; uint64_t bytes; };

static void sha_add(struct sha *sha, const uint8_t *at, int size)
{
    sha->bytes += (uint64_t)size;
    while (size) {
        int part = size < 64 - sha->held ? size : 64 - sha->held;
        memcpy(sha->block + sha->held, at, (size_t)part);
        sha->held += part, at += part, size -= part;
        if (sha->held == 64) {
            sha_block(sha->state, sha->block);
            sha->held = 0;
        }
    }
}

static void put_big64(uint8_t *at, uint64_t value)
{
    for (int byte = 0; byte < 8; byte++)
        at[byte] = (uint8_t)(value >> (56 - 8 * byte));
}

static void sha_end(struct sha *sha)
{
    uint64_t bits = sha->bytes * 8;
    sha->block[sha->held++] = 0x80;
    if (sha->held > 56) {
        memset(sha->block + sha->held, 0, (size_t)(64 - sha->held));
        sha_block(sha->state, sha->block);
        sha->held = 0;
    }
    memset(sha->block + sha->held, 0, (size_t)(56 - sha->held));
    put_big64(sha->block + 56, bits);
    sha_block(sha->state, sha->block);
}

/* Add the first four words of each transaction's hash to the sums; 0 where its deliveries lie outside. */
static int sum_digests(const uint8_t *entries, int64_t count, const int64_t *starts, const int64_t *delivered,
                       int64_t delivered_count, uint64_t sums[4])
{
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    for (int64_t row = 0; row < count; row++) {
        int64_t first = starts[row], stop = starts[row + 1];
        if (first < 0 || stop < first || stop > delivered_count)
            return 0;
        struct sha sha;
        memcpy(sha.state, initial, sizeof initial);
        sha.held = 0, sha.bytes = 0;
        sha_add(&sha, entries + row * ENTRY_BYTES, ENTRY_BYTES);
        for (; first < stop; first++) {
            uint8_t offset[8];
            put_big64(offset, (uint64_t)delivered[first]);
            sha_add(&sha, offset, 8);
        }
        sha_end(&sha);
        for (int word = 0; word < 4; word++)
            sums[word] += sha.state[word];
    }
    return 1;
}

static const char digest_sums_doc[] =
    "digest_sums(entries, starts, delivered) -> (word, word, word, word)\n\n"
    "The sums, word by word, of the first 16 bytes of the SHA-256 of each transaction: its 26 bytes of `entries`, then\n"
    "delivered[starts[i] : starts[i + 1]], each as eight bytes, big-endian. `starts` and `delivered` are int64.";

static PyObject *fast_digest_sums(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer buffer[3];
    if (!PyArg_ParseTuple(args, "y*y*y*:digest_sums", &buffer[0], &buffer[1], &buffer[2]))
        return NULL;
    PyObject *result = NULL;
    int64_t count = buffer[0].len / ENTRY_BYTES, delivered = buffer[2].len / 8;
    uint64_t sums[4] = {0, 0, 0, 0};
    if (buffer[0].len % ENTRY_BYTES) {
        PyErr_Format(PyExc_ValueError, "entries have %d bytes each, and these are %zd", ENTRY_BYTES, buffer[0].len);
        goto done;
    }
    if (!array_holds(&buffer[1], "starts", count + 1, 8) || !array_holds(&buffer[2], "delivered", delivered, 8))
        goto done;
    int fits;
    Py_BEGIN_ALLOW_THREADS
    fits = sum_digests(buffer[0].buf, count, buffer[1].buf, buffer[2].buf, delivered, sums);
    Py_END_ALLOW_THREADS
    if (fits)
        result = Py_BuildValue("(KKKK)", (unsigned long long)sums[0], (unsigned long long)sums[1],
                               (unsigned long long)sums[2], (unsigned long long)sums[3]);
    else
        PyErr_SetString(PyExc_ValueError, "the deliveries of a transaction lie outside");
done:
    arrays_release(buffer, 3);
    return result;
}

#endif
