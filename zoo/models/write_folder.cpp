// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/write_folder.h"

#include "tessera/engine/checkpoint/whole_model.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/deferred_init.h"
#include "tessera/sharding/page_key.h"
#include "tessera/sharding/parallel/group_operations.h"
#include "tessera/sharding/parallel/parallel_module.h"
#include "tessera/zoo/models/weight_writer.h"

#include <torch/types.h>

#include <exception>
#include <optional>

namespace tessera::zoo {

namespace {

/// Gathers partitions of tensor-parallel ranks to whole parameters.
class PartGatherer {
 public:
  explicit PartGatherer(const Model& model) : specs_(specs_in(model)) {
    for (const auto& module : model.modules()) {
      if (const auto* one = dynamic_cast<const ParallelModule*>(&*module)) {
        group_ = one->how().group;
      }
    }
  }

  /// Whether this is the first rank of its group.
  bool is_writer() const {
    return group_ == nullptr || group_->rank() == 0;
  }
  Communicator* group() const {
    return group_;
  }

  /// Collective over the group.
  /// @param value of `parameter`, which is not always in it.
  at::Tensor whole(const at::Tensor& parameter, const at::Tensor& value) const {
    return group_ == nullptr ? value
                             : sharding::gather_whole(
                                   value,
                                   specs_.at(parameter.unsafeGetTensorImpl()),
                                   *group_);
  }

 private:
  TensorSpecs specs_;
  Communicator* group_ = nullptr;
};

/// A parameter's value; without memory, the value that it will be filled with.
at::Tensor value_of(const at::Tensor& parameter) {
  if (!sharding::is_deferred(parameter)) {
    return parameter;
  }
  c10::StorageImpl& storage = *parameter.storage().unsafeGetStorageImpl();
  const auto count =
      static_cast<int64_t>(storage.nbytes() / parameter.itemsize());
  const at::Tensor values =
      at::empty({count}, parameter.options().requires_grad(false));
  sharding::deferred_init(storage)->fill(values, 0);
  return values.as_strided(
      parameter.sizes(), parameter.strides(), parameter.storage_offset());
}

/// @param visit called on the rank that writes.
void visit_parts(
    const PartGatherer& gatherer,
    const Model& model,
    const WeightNames& names,
    const VisitWhole& visit) {
  const torch::NoGradGuard no_grad;
  const auto parameters = model.named_parameters();
  for (const auto& item : parameters) {
    TESSERA_CHECK(
        !sharding::has_page_key(item.value()),
        "saving: '{}' is sharded; pass the engine too, on every rank.",
        item.key());
  }
  for (const auto& item : parameters) {
    if (!names.has(item.key())) {
      continue;
    }
    const at::Tensor whole =
        gatherer.whole(item.value(), value_of(item.value()));
    if (gatherer.is_writer()) {
      visit(item.key(), whole);
    }
  }
}

/// The writer, active on one rank. Its errors are thrown by finish(), so that
/// other ranks are not left waiting in a collective.
class FolderJob {
 public:
  /// @param dtypes of all parameters in `names`.
  FolderJob(
      const WeightNames& names,
      const ParameterTypes& dtypes,
      const WrittenFolder& folder)
      : names_(names), folder_(folder) {
    guarded([&] {
      weights_.emplace(
          folder.open(dtypes), names, dtypes, folder.max_shard_bytes);
    });
  }

  void add(const std::string& name, const at::Tensor& value) {
    if (names_.has(name)) {
      guarded([&] {
        weights_->add(
            name, folder_.change ? folder_.change(name, value) : value);
      });
    }
  }

  void commit() {
    guarded([&] {
      weights_->commit();
      folder_.commit();
    });
  }

  const std::exception_ptr& error() const {
    return error_;
  }

 private:
  template <typename Work>
  void guarded(const Work& work) {
    if (error_) {
      return;
    }
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  const WeightNames& names_;
  const WrittenFolder& folder_;
  std::optional<WeightWriter> weights_;
  std::exception_ptr error_;
};

/// @param sum sums a number over the ranks.
template <typename Sum>
void finish(
    std::optional<FolderJob>& job,
    const WrittenFolder& folder,
    const Sum& sum) {
  if (job) {
    job->commit();
  }
  const double failed =
      sum(torch::full({1}, job && job->error() ? 1.0 : 0.0, torch::kDouble));
  if (job && job->error()) {
    std::rethrow_exception(job->error());
  }
  TESSERA_CHECK(
      failed == 0,
      "the writing rank could not write {}; its own error message says why",
      folder.path);
}

} // namespace

void write_folder(
    const Model& model,
    const WeightNames& names,
    const WrittenFolder& folder) {
  const PartGatherer gatherer(model);
  std::optional<FolderJob> job;
  if (gatherer.is_writer()) {
    job.emplace(names, parameter_dtypes(model), folder);
  }
  visit_parts(
      gatherer,
      model,
      names,
      [&](const std::string& name, const at::Tensor& whole) {
        job->add(name, whole);
      });
  finish(job, folder, [&](const at::Tensor& failed) {
    return gatherer.group() == nullptr
               ? failed.item<double>()
               : sharding::reduce_over_group(failed, *gatherer.group())
                     .item<double>();
  });
}

void write_folder(
    std::vector<WholeModel> parts,
    const World& world,
    const std::function<WeightNames(const ParameterSizes& sizes)>& names_of,
    const WrittenFolder& folder) {
  ParameterSizes sizes;
  ParameterTypes dtypes;
  for (const WholeModel& part : parts) {
    for (const WholeTensor& tensor : part.tensors()) {
      for (const std::string& name : tensor.spec.names) {
        if (!tensor.is_buffer) {
          sizes.emplace(name, tensor.spec.sizes);
          dtypes.emplace(name, tensor.spec.dtype);
        }
      }
    }
  }
  const WeightNames names = names_of(sizes);
  std::optional<FolderJob> job;
  if (world.rank() == 0) {
    job.emplace(names, dtypes, folder);
  }
  for (WholeModel& part : parts) {
    part.for_each([&](const WholeTensor& tensor, const at::Tensor& value) {
      for (const std::string& name : tensor.spec.names) {
        if (!tensor.is_buffer) {
          job->add(name, value);
        }
      }
    });
  }
  finish(job, folder, [&](const at::Tensor& failed) {
    parts.front().job().sum(failed);
    return failed.item<double>();
  });
}

void for_each_whole(
    const Model& model,
    const WeightNames& names,
    const VisitWhole& visit) {
  visit_parts(PartGatherer(model), model, names, visit);
}

void for_each_whole(
    Engine& engine,
    const std::function<bool(const std::string& name)>& wants,
    const VisitWhole& visit) {
  engine.whole_model().for_each(
      [&](const WholeTensor& tensor, const at::Tensor& value) {
        for (const std::string& name : tensor.spec.names) {
          if (!tensor.is_buffer && wants(name)) {
            visit(name, value);
          }
        }
      });
}

} // namespace tessera::zoo
