// SPDX-License-Identifier: Apache-2.0
// `AdafactorMethod`: second moments by row and column.
#include "tessera/engine/optim/optimizers/adafactor.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/optimizers/factored_moment.h"
#include "tessera/offload/stores/tier_bytes.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace tessera {

namespace engine {

namespace {

/// [Note: sums of Adafactor] One step needs two sums over the ranks: of squared
/// gradients by row and column, with the squares of the weights; and of the
/// squared updates, to clip them. Each is one flat float64 tensor for all
/// parameters, so that every rank continues with the same numbers; where all
/// updates are on an accelerator, it is there too, and the host does not wait
/// for it. Updates are computed twice, for their squares and to apply them:
/// kept, they would take as much memory as the weights.
class AdafactorMethod : public UpdateMethod {
 public:
  AdafactorMethod(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const AdafactorOptions& options)
      : UpdateMethod(context, parameters, {}), options_(options) {
    for (OptimizedParameter* parameter : parameters) {
      Entry entry;
      entry.shape = FactoredShape::of(parameter->paged->record.tensor);
      entries_.emplace(parameter, std::move(entry));
      order_.push_back(parameter);
    }
  }

  void add_state_bytes(TierBytes& bytes) const override {
    const auto add = [&](const OptimizedParameter& parameter, int64_t numel) {
      const offload::UpdateSite& site = *context_.sites[parameter.group];
      // As TierStores::memory_store().
      const MemoryTier tier = site.tiers().state == MemoryTier::kDevice
                                  ? MemoryTier::kDevice
                                  : MemoryTier::kHost;
      offload::add_tier_bytes(
          bytes,
          tier,
          MemoryPurpose::kOptimizerState,
          numel,
          site.types().master);
    };
    for (const OptimizedParameter* parameter : order_) {
      const Entry& entry = entries_.at(parameter);
      if (entry.shape) {
        add(*parameter, entry.shape->state_numel());
      }
    }
    for_each_segment([&](const MethodShard&, const ParameterSegment& segment) {
      if (!entries_.at(segment.parameter).shape) {
        add(*segment.parameter, segment.numel);
      }
    });
  }

  void allocate(const StateMemory& memory) override {
    UpdateMethod::allocate(memory);
    const auto make = [&](const OptimizedParameter& parameter, int64_t numel) {
      const offload::UpdateSite& site = *context_.sites[parameter.group];
      constexpr auto kPurpose = MemoryPurpose::kOptimizerState;
      runtime::ShardStore* store = memory.stores.memory_store(parameter.group);
      return store != nullptr
                 ? runtime::RestingTensor(store->reserve(
                       "exp_avg_sq of '" + parameter.name() + "'",
                       kPurpose,
                       numel,
                       site.types().master))
                 : runtime::RestingTensor(memory.ledger.allocate_zeros(
                       kPurpose, numel, site.types().master, site.device()));
    };
    for (OptimizedParameter* parameter : order_) {
      Entry& entry = entries_.at(parameter);
      if (entry.shape) {
        entry.moments.emplace(make(*parameter, entry.shape->state_numel()));
      }
    }
    for_each_segment([&](const MethodShard&, const ParameterSegment& segment) {
      Entry& entry = entries_.at(segment.parameter);
      if (!entry.shape) {
        entry.moments.emplace(make(*segment.parameter, segment.numel));
      }
    });
  }

  void step(const StepInput& input) override {
    const std::vector<MethodShard*> parts = active_parts();
    const at::Tensor squares = sum_gradients(input, parts);
    context_.ranks.sum_over_shards(squares, pages_of_sums());
    forget_and_add(squares);
    const at::Tensor update_squares =
        zero_sums(static_cast<int64_t>(order_.size()));
    for_each_active_segment(
        input,
        parts,
        {.weights = false},
        [&](const ParameterSegment& segment,
            const offload::ShardTensors& shard) {
          update_squares[row_of(segment)] += update_of(segment, shard)
                                                 .square_()
                                                 .sum(at::kDouble)
                                                 .to(update_squares.device());
        });
    context_.ranks.sum_over_shards(update_squares, context_.rows_of(order_));
    for_each_active_segment(
        input,
        parts,
        {},
        [&](const ParameterSegment& segment,
            const offload::ShardTensors& shard) {
          apply(
              segment,
              shard,
              input.lr_of(*segment.parameter),
              update_squares[row_of(segment)]);
        });
  }

  void visit_state(StateVisitor& visitor) override {
    for (const OptimizedParameter* parameter : order_) {
      const Entry& entry = entries_.at(parameter);
      if (entry.shape) {
        visitor.replicated(*parameter, "exp_avg_sq_factors", entry.values());
      }
    }
    for_each_segment([&](const MethodShard&, const ParameterSegment& segment) {
      Entry& entry = entries_.at(segment.parameter);
      if (!entry.shape) {
        visitor.elements(segment, "exp_avg_sq", *entry.moments, 0);
      }
    });
  }

 private:
  struct Entry {
    std::optional<FactoredShape> shape; ///< nothing: a moment per element
    /// For a factored parameter the whole factors, see FactoredShape; else
    /// [numel] of the run, nothing if this rank has none. They are small and
    /// stay in memory where updates run.
    std::optional<runtime::RestingTensor> moments;
    at::Tensor weight_squares; ///< of the step in progress: [] float64

    at::Tensor values() const {
      return moments->tensor();
    }
  };

  template <typename Body>
  void for_each_segment(const Body& body) const {
    for (const MethodShard& part : parts_) {
      for (const ParameterSegment& segment : part.segments) {
        body(part, segment);
      }
    }
  }

  template <typename Body>
  void for_each_active_segment(
      const StepInput& input,
      const std::vector<MethodShard*>& parts,
      const Writes& writes,
      const Body& body) {
    for_each_part(
        input,
        parts,
        writes,
        [&](MethodShard& part, const offload::ShardTensors& shard) {
          for (const ParameterSegment& segment : part.segments) {
            if (segment.parameter->has_gradient) {
              body(segment, shard);
            }
          }
        });
  }

  int64_t row_of(const ParameterSegment& segment) const {
    return std::find(order_.begin(), order_.end(), segment.parameter) -
           order_.begin();
  }

  static at::Tensor gradient_of(
      const ParameterSegment& segment,
      const offload::ShardTensors& shard) {
    return segment.parameter->scaled(
        shard.gradient.narrow(0, segment.shard_offset, segment.numel)
            .to(shard.master.scalar_type()));
  }

  /// The step of a run before clipping and learning rate.
  at::Tensor update_of(
      const ParameterSegment& segment,
      const offload::ShardTensors& shard) const {
    const Entry& entry = entries_.at(segment.parameter);
    at::Tensor update = gradient_of(segment, shard);
    if (entry.shape) {
      entry.shape->divide_by_root(
          update, segment.parameter_offset, entry.values());
    } else {
      update.div_(entry.values().sqrt());
    }
    return update;
  }

  at::Tensor zero_sums(int64_t numel) const {
    return at::zeros(
        {numel},
        at::TensorOptions(context_.device_of_sums()).dtype(at::kDouble));
  }

  /// Elements of a parameter in the first sum: the square of its weights, then
  /// rows and columns.
  static int64_t sum_numel(const Entry& entry) {
    return 1 + (entry.shape ? entry.shape->state_numel() : 0);
  }

  /// The pages that elements of the first sum belong to.
  std::vector<sharding::PageRows> pages_of_sums() const {
    std::vector<sharding::PageRows> pages;
    for (const OptimizedParameter* parameter : order_) {
      if (parameter->has_gradient) {
        pages.push_back(
            {&context_.pages[parameter->group],
             sum_numel(entries_.at(parameter))});
      }
    }
    return pages;
  }

  /// This rank's share of the first sum. Also updates moments of elements.
  at::Tensor sum_gradients(
      const StepInput& input,
      const std::vector<MethodShard*>& parts) {
    std::map<const OptimizedParameter*, int64_t> offsets;
    int64_t numel = 0;
    for (const OptimizedParameter* parameter : order_) {
      offsets[parameter] = numel;
      numel += parameter->has_gradient ? sum_numel(entries_.at(parameter)) : 0;
    }
    const at::Tensor sums = zero_sums(numel);
    for_each_active_segment(
        input,
        parts,
        {.weights = false},
        [&](const ParameterSegment& segment,
            const offload::ShardTensors& shard) {
          const Entry& entry = entries_.at(segment.parameter);
          const at::Tensor local =
              sums.narrow(0, offsets.at(segment.parameter), sum_numel(entry));
          local[0] +=
              shard.master.narrow(0, segment.shard_offset, segment.numel)
                  .to(at::kDouble)
                  .square()
                  .sum()
                  .to(sums.device());
          const at::Tensor squares =
              gradient_of(segment, shard).square_().add_(options_.eps);
          if (entry.shape) {
            entry.shape->add_sums(
                squares,
                segment.parameter_offset,
                local.narrow(0, 1, local.numel() - 1));
          } else {
            entry.values().lerp_(squares, 1 - beta2(*segment.parameter));
          }
        });
    return sums;
  }

  double beta2(const OptimizedParameter& parameter) const {
    return 1 -
           std::pow(
               static_cast<double>(parameter.steps), -options_.decay_exponent);
  }

  /// Updates the moments with the sums over all ranks.
  void forget_and_add(const at::Tensor& sums) {
    int64_t offset = 0;
    for (const OptimizedParameter* parameter : order_) {
      if (!parameter->has_gradient) {
        continue;
      }
      Entry& entry = entries_.at(parameter);
      entry.weight_squares = sums[offset];
      if (entry.shape) {
        const at::Tensor means = entry.shape->means_of(
            sums.narrow(0, offset + 1, entry.shape->state_numel()));
        const at::Tensor& moments = entry.values();
        moments.lerp_(
            means.to(moments.device(), moments.scalar_type()),
            1 - beta2(*parameter));
      }
      offset += sum_numel(entry);
    }
  }

  /// @param update_squares of the whole parameter: [] float64.
  void apply(
      const ParameterSegment& segment,
      const offload::ShardTensors& shard,
      double lr,
      const at::Tensor& update_squares) const {
    const OptimizedParameter& parameter = *segment.parameter;
    const auto numel =
        static_cast<double>(parameter.paged->record.tensor.numel());
    const at::Tensor rate = rate_of(parameter, lr);
    const at::Tensor rms = (update_squares / numel).sqrt_();
    const at::Tensor clipped =
        rate / (rms / options_.clip_threshold).clamp_min_(1);
    const at::Tensor decay = 1 - rate * parameter.settings.weight_decay;
    const at::Tensor update = update_of(segment, shard);
    const at::Tensor master =
        shard.master.narrow(0, segment.shard_offset, segment.numel);
    if (rate.is_cpu()) {
      master.mul_(decay.item());
      master.sub_(update, clipped.item());
    } else {
      master.mul_(decay);
      master.addcmul_(update, clipped.to(update.scalar_type()), -1);
    }
    if (shard.low_precision.defined()) {
      shard.low_precision.narrow(0, segment.shard_offset, segment.numel)
          .copy_(master);
    }
  }

  /// The learning rate of a parameter, which may depend on its size: []
  /// float64.
  at::Tensor rate_of(const OptimizedParameter& parameter, double lr) const {
    const at::Tensor& squares = entries_.at(&parameter).weight_squares;
    if (!options_.scale_by_parameter) {
      return at::full_like(squares, lr);
    }
    const auto numel =
        static_cast<double>(parameter.paged->record.tensor.numel());
    return (squares / numel).sqrt_().clamp_min_(options_.min_scale).mul_(lr);
  }

  AdafactorOptions options_;
  std::vector<OptimizedParameter*> order_;
  std::map<const OptimizedParameter*, Entry> entries_;
};

class Adafactor : public OptimizerWith<AdafactorOptions> {
 public:
  const char* name() const override {
    return "Adafactor";
  }
  const char* key() const override {
    return "adafactor";
  }

 private:
  void fields(runtime::OptionFields& fields, AdafactorOptions& options)
      const override {
    const runtime::DoubleRange positive{.min = 0, .open_min = true};
    fields.field(
        "clip_threshold",
        options.clip_threshold,
        positive,
        "updates with a larger root mean square are scaled down to this one");
    fields.field(
        "scale_by_parameter",
        options.scale_by_parameter,
        "multiply the learning rate by the root mean square of the parameter");
    fields.field(
        "min_scale", options.min_scale, {.min = 0}, "minimum of that factor");
    fields.field(
        "decay_exponent",
        options.decay_exponent,
        positive,
        "the decay rate of the second moment is 1 - step^-decay_exponent");
    fields.field("eps", options.eps, positive, "added to squared gradients");
  }
  int moments(const AdafactorOptions& /*options*/) const override {
    return 1;
  }
  void add(
      UpdateContext& context,
      const std::vector<OptimizedParameter*>& parameters,
      const AdafactorOptions& options,
      std::vector<std::unique_ptr<UpdateMethod>>& methods) const override {
    methods.push_back(
        std::make_unique<AdafactorMethod>(context, parameters, options));
  }
};

} // namespace

} // namespace engine

const engine::Optimizer& optimizer_of(
    std::type_identity<AdafactorOptions> /*options*/) {
  static const engine::Adafactor adafactor;
  return adafactor;
}

} // namespace tessera
