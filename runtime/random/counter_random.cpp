// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/random/counter_random.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/runtime/threads/parallel.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace tessera {

namespace {

// [Note: counter layout] One Philox call gives four words. Numbers come in
// chunks of four rows of kLanes: element i is word (i / kLanes) % 4 of counter
// (i / kChunk) * kLanes + i % kLanes. The loops below thus run over lanes,
// which compilers vectorize, and a row is stored as it was computed. Only IEEE
// 754 +, -, *, / and sqrt are used, without contraction, so the bits are the
// same for every vector length.
constexpr int64_t kLanes = 64;
constexpr int64_t kChunk = 4 * kLanes;

using Words = std::array<std::array<uint32_t, kLanes>, 4>;
using Numbers = std::array<float, kChunk>;

// Not at::Philox4_32: the same bits, but a counter at a time, 2.5 times slower.
void philox(const RandomStream& random, uint64_t chunk, Words& words) {
  auto& [w0, w1, w2, w3] = words;
  for (int64_t i = 0; i < kLanes; ++i) {
    const uint64_t counter = chunk * kLanes + static_cast<uint64_t>(i);
    w0[i] = static_cast<uint32_t>(counter);
    w1[i] = static_cast<uint32_t>(counter >> 32);
    w2[i] = static_cast<uint32_t>(random.stream);
    w3[i] = static_cast<uint32_t>(random.stream >> 32);
  }
  auto key0 = static_cast<uint32_t>(random.seed);
  auto key1 = static_cast<uint32_t>(random.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const uint64_t product0 = uint64_t{0xD2511F53} * w0[i];
      const uint64_t product1 = uint64_t{0xCD9E8D57} * w2[i];
      w0[i] = static_cast<uint32_t>(product1 >> 32) ^ w1[i] ^ key0;
      w2[i] = static_cast<uint32_t>(product0 >> 32) ^ w3[i] ^ key1;
      w1[i] = static_cast<uint32_t>(product1);
      w3[i] = static_cast<uint32_t>(product0);
    }
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

/// Natural logarithm of a normal positive float, to about an ulp.
float log_of(float x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  constexpr uint32_t kSqrtHalf = 0x3F3504F3;
  const uint32_t shifted = std::bit_cast<uint32_t>(x) - kSqrtHalf;
  const auto e = static_cast<float>(static_cast<int32_t>(shifted) >> 23);
  const float m = std::bit_cast<float>((shifted & 0x007FFFFF) + kSqrtHalf);
  // log m = 2 artanh(s); |s| < 0.172, so that the next term is below 4e-9 s.
  const float s = (m - 1.0F) / (m + 1.0F);
  const float z = s * s;
  const float series =
      ((z * (1.0F / 9) + 1.0F / 7) * z + 1.0F / 5) * z + 1.0F / 3;
  // ln 2 in two parts; the first has few bits, so its product with e is exact.
  return e * 0.693359375F + (e * -2.12194440e-4F + 2 * s * (series * z + 1.0F));
}

/// Two independent normal numbers from two words.
void box_muller(uint32_t word0, uint32_t word1, float& first, float& second) {
  const float uniform =
      (static_cast<float>(static_cast<int32_t>(word0 >> 1)) + 0.5F) *
      0x1p-31F; // in (0, 1]
  const float radius = std::sqrt(-2.0F * log_of(uniform));
  // A turn is 2^32; the remainder after the nearest quarter is in [-pi/4,
  // pi/4), where the Taylor series below are accurate to half an ulp.
  const uint32_t turned = word1 + 0x20000000;
  const uint32_t quarter = turned >> 30;
  const auto rest = static_cast<int32_t>(turned & 0x3FFFFFFF) - 0x20000000;
  const float t = static_cast<float>(rest) * (1.57079632679F * 0x1p-30F);
  const float z = t * t;
  const float sine =
      t + t * z *
              (((z * (1.0F / 362880) - 1.0F / 5040) * z + 1.0F / 120) * z -
               1.0F / 6);
  const float cosine =
      ((((z * (-1.0F / 3628800) + 1.0F / 40320) * z - 1.0F / 720) * z +
        1.0F / 24) *
           z -
       0.5F) *
          z +
      1.0F;
  const bool swap = (quarter & 1) != 0;
  const float x = swap ? sine : cosine;
  const float y = swap ? cosine : sine;
  // Quarters 1 and 2 have a negative cosine, 2 and 3 a negative sine.
  const uint32_t sign_x = ((quarter + 1) & 2) << 30;
  const uint32_t sign_y = (quarter & 2) << 30;
  first = radius * std::bit_cast<float>(std::bit_cast<uint32_t>(x) ^ sign_x);
  second = radius * std::bit_cast<float>(std::bit_cast<uint32_t>(y) ^ sign_y);
}

/// Numbers of one chunk in their standard form.
struct Uniform {
  static void make(const Words& words, Numbers& numbers) {
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t i = 0; i < kLanes; ++i) {
        // 24 bits: in [0, 1) and exact.
        numbers[row * kLanes + i] =
            static_cast<float>(static_cast<int32_t>(words[row][i] >> 8)) *
            0x1p-24F;
      }
    }
  }
};

struct Normal {
  static void make(const Words& words, Numbers& numbers) {
    for (int64_t row = 0; row < 4; row += 2) {
      float* first = numbers.data() + row * kLanes;
      float* second = first + kLanes;
      for (int64_t i = 0; i < kLanes; ++i) {
        box_muller(words[row][i], words[row + 1][i], first[i], second[i]);
      }
    }
  }
};

/// target[i] = offset + scale * element first + i.
template <typename Distribution, typename T>
void fill_on_host(
    T* target,
    int64_t numel,
    const RandomStream& random,
    int64_t first,
    float offset,
    float scale) {
  const int64_t first_chunk = first / kChunk;
  const int64_t end_chunk = (first + numel + kChunk - 1) / kChunk;
  runtime::parallel_for(
      first_chunk, end_chunk, 64, [&](int64_t begin, int64_t end) {
        Words words;
        Numbers numbers;
        for (int64_t chunk = begin; chunk < end; ++chunk) {
          philox(random, static_cast<uint64_t>(chunk), words);
          Distribution::make(words, numbers);
          for (float& number : numbers) {
            number = offset + scale * number;
          }
          const int64_t from = std::max(first, chunk * kChunk);
          const int64_t to = std::min(first + numel, (chunk + 1) * kChunk);
          const float* source = numbers.data() - chunk * kChunk;
          for (int64_t i = from; i < to; ++i) {
            target[i - first] = static_cast<T>(source[i]);
          }
        }
      });
}

template <typename Distribution>
void fill(
    const at::Tensor& slice,
    const RandomStream& random,
    int64_t first,
    double offset,
    double scale,
    const char* function) {
  TESSERA_CHECK(
      slice.defined() && slice.is_contiguous() && slice.is_floating_point(),
      "{}: the slice is {}{}; it must be a contiguous floating-point tensor.",
      function,
      slice.defined() ? slice.toString() : "undefined",
      slice.defined() && !slice.is_contiguous() ? ", not contiguous" : "");
  TESSERA_CHECK(
      first >= 0,
      "{}: the first element is {}; it must be at least 0.",
      function,
      first);
  if (runtime::is_dry_memory(slice.const_data_ptr())) {
    return;
  }
  if (!slice.is_cpu()) {
    constexpr int64_t kPart = int64_t{1} << 22;
    const at::Tensor flat = slice.view({-1});
    for (int64_t done = 0; done < flat.numel(); done += kPart) {
      const at::Tensor part =
          flat.narrow(0, done, std::min(kPart, flat.numel() - done));
      const at::Tensor host = at::empty(part.sizes(), part.scalar_type());
      fill<Distribution>(host, random, first + done, offset, scale, function);
      part.copy_(host);
    }
    return;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, slice.scalar_type(), "counter_random", [&] {
        fill_on_host<Distribution>(
            slice.mutable_data_ptr<scalar_t>(),
            slice.numel(),
            random,
            first,
            static_cast<float>(offset),
            static_cast<float>(scale));
      });
}

} // namespace

uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  }
  return hash;
}

void fill_uniform(
    const at::Tensor& slice,
    const RandomStream& random,
    int64_t first_element,
    double low,
    double high) {
  fill<Uniform>(slice, random, first_element, low, high - low, "fill_uniform");
}

void fill_normal(
    const at::Tensor& slice,
    const RandomStream& random,
    int64_t first_element,
    double mean,
    double std) {
  fill<Normal>(slice, random, first_element, mean, std, "fill_normal");
}

} // namespace tessera
