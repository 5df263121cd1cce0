// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/random/counter_random.h"

#include "support/expect_error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tessera::runtime::counter_random_test {

namespace {

constexpr int64_t kMany = 1 << 20;

at::Tensor normal(int64_t numel, int64_t first, RandomStream random = {7, 3}) {
  const at::Tensor slice = at::empty({numel});
  fill_normal(slice, random, first);
  return slice;
}

/// Philox4x32-10 straight from the paper, one counter at a time.
std::array<uint32_t, 4> philox_reference(
    std::array<uint32_t, 4> counter,
    std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0],
        static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1],
        static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// Words of element `i`, and of the one that Box-Muller pairs it with.
std::array<uint32_t, 4> words_of(int64_t i, const RandomStream& random) {
  const auto counter = static_cast<uint64_t>(i / 256 * 64 + i % 64);
  return philox_reference(
      {static_cast<uint32_t>(counter),
       static_cast<uint32_t>(counter >> 32),
       static_cast<uint32_t>(random.stream),
       static_cast<uint32_t>(random.stream >> 32)},
      {static_cast<uint32_t>(random.seed),
       static_cast<uint32_t>(random.seed >> 32)});
}

} // namespace

TEST(CounterRandom, PhiloxMatchesItsPublishedVectors) {
  // Known answers of the authors' Random123 library.
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(
      philox_reference({0, 0, 0, 0}, {0, 0}),
      (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      philox_reference(
          {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
          {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterRandom, UniformNumbersAreThePhiloxWords) {
  const RandomStream random{0x123456789ABCDEF0, 0x0FEDCBA987654321};
  // Beyond 2^32 counters, so that their upper half counts.
  const int64_t first = (int64_t{1} << 35) + 77;
  const at::Tensor slice = at::empty({1000});
  fill_uniform(slice, random, first);
  for (int64_t i = 0; i < slice.numel(); ++i) {
    const auto words = words_of(first + i, random);
    const uint32_t word = words[(first + i) / 64 % 4];
    ASSERT_EQ(slice[i].item<float>(), static_cast<float>(word >> 8) * 0x1p-24F);
  }
}

TEST(CounterRandom, NormalNumbersMatchFloat64BoxMuller) {
  const RandomStream random{5, 6};
  const at::Tensor slice = normal(100'000, 0, random);
  const float* got = slice.const_data_ptr<float>();
  for (int64_t i = 0; i < slice.numel(); ++i) {
    const auto words = words_of(i, random);
    const int64_t row = i / 64 % 4;
    const double uniform =
        (static_cast<double>(words[row & 2] >> 1) + 0.5) * 0x1p-31;
    const double turn = static_cast<double>(words[row | 1]) * 0x1p-32;
    const double radius = std::sqrt(-2 * std::log(uniform));
    const double angle = 2 * M_PI * turn;
    const double want = radius * (row & 1 ? std::sin(angle) : std::cos(angle));
    // A few float32 roundings of numbers up to 6.7. Where the uniform number
    // is near 1, its own rounding to float32 moves the radius.
    ASSERT_NEAR(got[i], want, uniform > 0.999 ? 2e-4 : 4e-6) << i;
  }
}

TEST(CounterRandom, ASliceHasTheNumbersOfTheWhole) {
  const at::Tensor full = normal(5000, 0);
  for (const int64_t first : {0, 1, 63, 64, 255, 256, 257, 1000, 4095}) {
    for (const int64_t numel : {0, 1, 5, 64, 300, 905}) {
      EXPECT_TRUE(
          torch::equal(normal(numel, first), full.narrow(0, first, numel)))
          << first << " + " << numel;
    }
  }
}

TEST(CounterRandom, NumbersDoNotDependOnThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = normal(kMany, 11);
  at::set_num_threads(3);
  EXPECT_TRUE(torch::equal(normal(kMany, 11), alone));
  at::set_num_threads(threads);
}

TEST(CounterRandom, NormalMomentsAndDistribution) {
  const at::Tensor x = normal(kMany, 0).to(torch::kDouble);
  // Four standard errors: of the mean 1/sqrt(n), of the variance sqrt(2/n), of
  // the skewness sqrt(6/n), of the kurtosis sqrt(24/n).
  const double unit = 4 / std::sqrt(static_cast<double>(kMany));
  EXPECT_NEAR(x.mean().item<double>(), 0, unit);
  EXPECT_NEAR(x.square().mean().item<double>(), 1, unit * std::sqrt(2));
  EXPECT_NEAR(x.pow(3).mean().item<double>(), 0, unit * std::sqrt(15));
  EXPECT_NEAR(x.pow(4).mean().item<double>(), 3, unit * std::sqrt(96));
  // Kolmogorov-Smirnov: below 1.95 / sqrt(n) with probability 0.999.
  const at::Tensor sorted = std::get<0>(x.sort());
  const at::Tensor cdf = 0.5 * (1 + torch::erf(sorted / std::sqrt(2.0)));
  const at::Tensor empirical =
      torch::arange(kMany, torch::kDouble).add(0.5) / kMany;
  EXPECT_LT(
      (cdf - empirical).abs().max().item<double>(),
      1.95 / std::sqrt(static_cast<double>(kMany)));
  EXPECT_LT(x.abs().max().item<double>(), 6.7);
  EXPECT_GT(x.abs().max().item<double>(), 4.2); // there are tails
}

TEST(CounterRandom, UniformMomentsAndRange) {
  const at::Tensor x = at::empty({kMany}, at::kDouble);
  fill_uniform(x, {1, 2}, 0, -3, 5);
  EXPECT_GE(x.min().item<double>(), -3);
  EXPECT_LE(x.max().item<double>(), 5);
  const double unit = 4 * 8 / std::sqrt(12.0 * kMany);
  EXPECT_NEAR(x.mean().item<double>(), 1, unit);
  EXPECT_NEAR(x.std().item<double>(), 8 / std::sqrt(12.0), unit);
}

TEST(CounterRandom, NeighboursStreamsAndSeedsAreUncorrelated) {
  const double limit = 4 / std::sqrt(static_cast<double>(kMany));
  const at::Tensor x = normal(kMany, 0);
  const auto correlation = [](const at::Tensor& a, const at::Tensor& b) {
    return (a * b).mean().item<double>();
  };
  for (const int64_t lag : {1, 2, 63, 64, 128, 256, 1024}) {
    EXPECT_NEAR(correlation(x, normal(kMany, lag)), 0, limit) << lag;
  }
  EXPECT_NEAR(correlation(x, normal(kMany, 0, {7, 4})), 0, limit);
  EXPECT_NEAR(correlation(x, normal(kMany, 0, {8, 3})), 0, limit);
}

TEST(CounterRandom, OtherTypesAreRoundingsOfFloat32) {
  const at::Tensor reference = normal(1000, 5);
  for (const auto dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    const at::Tensor slice = at::empty({1000}, dtype);
    fill_normal(slice, {7, 3}, 5);
    EXPECT_TRUE(torch::equal(slice, reference.to(dtype))) << dtype;
  }
}

TEST(CounterRandom, StreamsOfNames) {
  // Values of the FNV-1a specification.
  EXPECT_EQ(stream_of(""), 0xCBF29CE484222325);
  EXPECT_EQ(stream_of("a"), 0xAF63DC4C8601EC8C);
  EXPECT_NE(stream_of("layers.1.weight"), stream_of("layers.2.weight"));
}

TEST(CounterRandom, WrongSlices) {
  expect_error(
      [] {
        fill_normal(at::empty({4, 4}).t(), {}, 0);
      },
      {"not contiguous"});
  expect_error([] { fill_uniform(at::Tensor(), {}, 0); }, {"undefined"});
  expect_error(
      [] { fill_uniform(at::empty({3}, at::kLong), {}, 0); },
      {"floating-point"});
  expect_error([] { fill_normal(at::empty({3}), {}, -1); }, {"at least 0"});
}

} // namespace tessera::runtime::counter_random_test
