// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/random/random_key.h"

#include "tessera/runtime/random/mixed_bits.h"

#include <ATen/Context.h>

#include <mutex>
#include <utility>

namespace tessera {

namespace {

constexpr uint64_t kMark = 0x7E55E4ULL << 40;
constexpr uint64_t kMarkBits = 0xFFFFFFULL << 40;

uint64_t marked(uint64_t seed) {
  return (seed & ~kMarkBits) | kMark;
}

bool is_marked(uint64_t seed) {
  return (seed & kMarkBits) == kMark;
}

/// Unlike mixed(x + y), not symmetric in x and y.
uint64_t mixed_pair(uint64_t x, int64_t y) {
  constexpr uint64_t kStep = 0x9E3779B97F4A7C15; // splitmix64's
  return runtime::mix_bits(
      runtime::mix_bits(x) + kStep * (static_cast<uint64_t>(y) + 1));
}

void begin_key(
    runtime::GeneratorScope& scope,
    at::Device device,
    uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  scope.begin(generator, seed);
}

void begin_layer(
    runtime::GeneratorScope& scope,
    at::Device device,
    int64_t layer) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  const uint64_t seed = generator.current_seed();
  if (is_marked(seed)) {
    scope.begin(generator, marked(mixed_pair(seed, layer)));
  }
}

std::optional<RandomKey>& current_key() {
  static std::optional<RandomKey> key; // of the process, as generators are
  return key;
}

} // namespace

RandomKeyScope::RandomKeyScope(const RandomKey& key, at::Device device)
    : before_(std::exchange(current_key(), key)) {
  const uint64_t seed = marked(mixed_pair(
      mixed_pair(runtime::mix_bits(key.seed), key.step), key.micro_batch));
  begin_key(cpu_, at::kCPU, seed);
  if (!device.is_cpu()) {
    begin_key(device_, device, seed);
  }
}

RandomKeyScope::~RandomKeyScope() {
  current_key() = before_;
}

std::optional<RandomKey> current_random_key() {
  return current_key();
}

double uniform_of_step(const RandomKey& key, int64_t number) {
  const uint64_t bits =
      mixed_pair(mixed_pair(runtime::mix_bits(key.seed), key.step), ~number);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

RandomLayerScope::RandomLayerScope(
    std::optional<int64_t> layer,
    at::Device device) {
  if (!layer) {
    return;
  }
  begin_layer(cpu_, at::kCPU, *layer);
  if (!device.is_cpu()) {
    begin_layer(device_, device, *layer);
  }
}

} // namespace tessera
