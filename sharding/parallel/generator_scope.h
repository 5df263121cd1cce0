// SPDX-License-Identifier: Apache-2.0
#pragma once
// A default generator that is seeded for a while.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// Every bit of the result depends on every bit of x (splitmix64's finaliser).
inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// Puts the state of a generator back when it ends. The state of a CUDA
/// generator lies on the host: nothing synchronises. One that has not begun
/// does nothing.
class GeneratorScope {
 public:
  GeneratorScope() = default;
  ~GeneratorScope();
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

  /// Keeps the generator's state and seeds it. Called once, with its mutex
  /// locked.
  void begin(const at::Generator& generator, uint64_t seed);

 private:
  at::Generator generator_; ///< undefined before begin()
  at::Tensor state_; ///< to go on from afterwards
};

} // namespace tessera
