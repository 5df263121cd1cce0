// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateRule` is an optimizer with its options.

#include <any>
#include <concepts>
#include <type_traits>
#include <utility>

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

/// An optimizer with its options, made from the latter:
/// `UpdateRule rule = LionOptions{.beta2 = 0.98};`
class UpdateRule {
 public:
  /// @param options a struct of engine/optim/optimizers/.
  template <typename Options>
  requires requires(std::type_identity<Options> type) {
    { optimizer_of(type) } -> std::convertible_to<const engine::Optimizer&>;
  }
  // NOLINTNEXTLINE(google-explicit-constructor)
  UpdateRule(Options options)
      : optimizer_(&optimizer_of(std::type_identity<Options>())),
        options_(std::move(options)) {}

  const engine::Optimizer& optimizer() const {
    return *optimizer_;
  }
  /// Of the type that the optimizer has.
  const std::any& options() const {
    return options_;
  }
  std::any& options() {
    return options_;
  }
  /// @throws std::bad_any_cast if they are of another optimizer.
  template <typename Options>
  const Options& as() const {
    return std::any_cast<const Options&>(options_);
  }

 private:
  const engine::Optimizer* optimizer_;
  std::any options_;
};

/// "AdamW", "SGD", ...
const char* name_of(const UpdateRule& rule);

/// Whether the optimizer updates each element from its own gradient and state
/// only, as AdamW, Adam, SGD, Lion and Adan do.
bool updates_elements_alone(const UpdateRule& rule);

} // namespace tessera
