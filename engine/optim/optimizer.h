// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Optimizer` is what distinguishes one optimizer from the others; each stands
// in a file of its own in optimizers/.

#include "tessera/engine/optim/update_method.h"
#include "tessera/engine/optim/update_rule.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"

#include <any>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::engine {

/// Made once; options are those of an UpdateRule of this optimizer.
class Optimizer {
 public:
  Optimizer() = default;
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// For messages.
  virtual const char* name() const = 0;
  /// `optimizer.type` of configurations; null: it cannot be configured.
  virtual const char* key() const = 0;
  /// In checkpoints, for the parameters that it trains.
  std::string saved_name() const {
    return key() == nullptr ? name() : key();
  }
  /// Whether state that the optimizer of that saved_name() has left means the
  /// same here. Tensors of the same name are not enough: Lion's `exp_avg` is
  /// not Adam's.
  virtual bool continues(std::string_view saved) const {
    return saved == saved_name();
  }
  virtual UpdateRule with_defaults() const = 0;
  virtual void visit_fields(runtime::OptionFields& fields, std::any& options)
      const = 0;
  /// @throws tessera::Error on fields that do not fit each other.
  virtual void check(const std::any& /*options*/) const {}

  virtual double default_weight_decay() const {
    return 0;
  }
  /// False if its weight decay is set elsewhere.
  virtual bool takes_weight_decay() const {
    return true;
  }
  /// See updates_elements_alone(rule).
  virtual bool updates_elements_alone() const {
    return false;
  }
  /// Whether there are steps in which its ranks exchange momentum in place of
  /// gradients: these cannot be clipped, and the optimizer needs whole
  /// parameters (OneBitMethod).
  virtual bool sends_momentum() const {
    return false;
  }
  /// See OptimizerOptions::moment_dtype.
  virtual bool takes_moment_dtype() const {
    return false;
  }
  /// False if it keeps state of its own kind in memory.
  virtual bool may_rest_in_files() const {
    return true;
  }
  /// The most moments per element.
  virtual int max_moments(const std::any& options) const = 0;

  /// Makes the methods that update the parameters.
  virtual void add_methods(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const std::any& options,
      std::vector<std::unique_ptr<UpdateMethod>>& methods) const = 0;

  /// Makes one update, whose time is measured. For optimizers that update
  /// elements alone.
  virtual void update(
      const runtime::UpdateTensors& /*tensors*/,
      const std::any& /*options*/) const {
    TESSERA_FAIL(
        "an update that uses more than one element at a time cannot be measured");
  }
};

/// Those of configurations.
const std::vector<const Optimizer*>& configurable_optimizers();

/// "AdamW, Adam, SGD or Lion": those of configurations that have a property,
/// such as &Optimizer::updates_elements_alone, for messages and documentation.
std::string names_of_optimizers(bool (Optimizer::*has)() const);

/// An optimizer with options of one type.
template <typename Options>
class OptimizerWith : public Optimizer {
 public:
  UpdateRule with_defaults() const final {
    return Options{};
  }
  void visit_fields(runtime::OptionFields& fields, std::any& options)
      const final {
    this->fields(fields, std::any_cast<Options&>(options));
  }
  void check(const std::any& options) const final {
    check_options(of(options));
  }
  int max_moments(const std::any& options) const final {
    return moments(of(options));
  }
  void add_methods(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const std::any& options,
      std::vector<std::unique_ptr<UpdateMethod>>& methods) const final {
    add(context, parameters, of(options), methods);
  }

 protected:
  static const Options& of(const std::any& options) {
    return std::any_cast<const Options&>(options);
  }

  // The functions above, with options of their type.
  virtual void fields(runtime::OptionFields& fields, Options& options)
      const = 0;
  virtual void check_options(const Options& /*options*/) const {}
  virtual int moments(const Options& options) const = 0;
  virtual void add(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const Options& options,
      std::vector<std::unique_ptr<UpdateMethod>>& methods) const = 0;
};

} // namespace tessera::engine
