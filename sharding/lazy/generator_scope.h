// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GeneratorScope` temporarily reseeds a default generator.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::sharding {

/// Every bit of the result depends on every bit of x (splitmix64's finalizer).
inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// Restores the state of a generator in its destructor. The state of a CUDA
/// generator is in host memory: nothing synchronizes. Without a call to begin()
/// it does nothing.
class GeneratorScope {
 public:
  GeneratorScope() = default;
  ~GeneratorScope();
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

  /// Saves the generator's state and seeds it. Call once, with the generator's
  /// mutex locked.
  void begin(const at::Generator& generator, uint64_t seed);

 private:
  at::Generator generator_; ///< undefined before begin()
  at::Tensor state_; ///< the saved state
};

} // namespace tessera::sharding
