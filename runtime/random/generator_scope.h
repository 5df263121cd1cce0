// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GeneratorScope` temporarily reseeds a default generator.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::runtime {

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

} // namespace tessera::runtime
