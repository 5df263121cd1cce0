// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/whole_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/lazy/deferred_init.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace tessera {

namespace {

using nlohmann::json;

json to_json(const WholeTensor& tensor) {
  return {
      {"names", tensor.spec.names},
      {"dtype", static_cast<int>(tensor.spec.dtype)},
      {"sizes", tensor.spec.sizes},
      {"is_buffer", tensor.is_buffer},
      {"group", tensor.group}};
}

WholeTensor whole_tensor(const json& from) {
  return {
      .spec = whole_spec(
          from.at("names"),
          from.at("sizes"),
          static_cast<at::ScalarType>(from.at("dtype").get<int>())),
      .is_buffer = from.at("is_buffer"),
      .group = from.at("group")};
}

/// For messages.
std::string place_text(const WholeTensor& tensor) {
  return tensor.of_experts
             ? formatted(
                   "part {} of the experts (pipeline stage {})",
                   tensor.part,
                   tensor.spec.pipeline_stage)
             : formatted("pipeline stage {}", tensor.spec.pipeline_stage);
}

/// The tensors that the engine does not shard: a module's buffers, and
/// parameters that are whole on the ranks that have them. By name, tied ones
/// once.
std::vector<std::pair<std::string, at::Tensor>> unpaged_tensors_of(
    const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && !sharding::has_page_key(tensor) &&
        seen.insert(tensor.unsafeGetTensorImpl()).second) {
      tensors.emplace_back(name, tensor);
    }
  };
  for (const auto& item : module.named_parameters()) {
    add(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    add(item.key(), item.value());
  }
  return tensors;
}

/// A tensor's value; of one without memory, the value that it will be filled
/// with.
at::Tensor value_of(const at::Tensor& tensor) {
  if (!sharding::is_deferred(tensor)) {
    return tensor;
  }
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const auto count = static_cast<int64_t>(storage.nbytes() / tensor.itemsize());
  const at::Tensor values =
      at::empty({count}, tensor.options().requires_grad(false));
  sharding::deferred_init(storage)->fill(values, 0);
  return values.as_strided(
      tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

} // namespace

WholeModel::WholeModel(engine::JobRanks& job, const torch::nn::Module& module)
    : job_(&job) {
  take_specs(module);
  const std::vector<WholeTensor> own = take_own(module);
  join_parts(own, /*of_experts=*/false);
  if (job_->experts() != nullptr) {
    join_parts(own, /*of_experts=*/true);
    sort_by_group();
  }
}

WholeModel::WholeModel(const torch::nn::Module& module)
    : alone_(std::make_unique<engine::JobRanks>(module)), job_(alone_.get()) {
  take_specs(module);
  join_parts(take_own(module), /*of_experts=*/false);
  for (const auto& item : module.named_parameters()) {
    TESSERA_CHECK(
        !sharding::has_page_key(item.value()),
        "saving: '{}' is sharded; call Engine::save_weights(), or pass the engine too, on every rank.",
        item.key());
  }
}

void WholeModel::take_specs(const torch::nn::Module& module) {
  specs_ = specs_in(module);
  if (job_->knows_tensor_ranks()) {
    return;
  }
  // Other ranks' partitions are out of reach: each rank's own are taken for the
  // whole.
  for (auto& [tensor, spec] : specs_) {
    spec.sizes = spec.own_sizes();
    spec.axes.clear();
  }
}

TensorSpec WholeModel::spec_of(const at::Tensor& tensor) const {
  return tessera::spec_of(tensor, specs_);
}

engine::ModelParts& WholeModel::parts(bool of_experts) {
  return of_experts ? *job_->experts() : job_->stages();
}

std::vector<WholeTensor> WholeModel::take_own(const torch::nn::Module& module) {
  std::vector<WholeTensor> tensors;
  const auto add = [&](WholeTensor tensor, Own own) {
    tensor.spec.sizes = spec_of(own.tensor).sizes;
    own_.emplace(tensor.name(), std::move(own));
    tensors.push_back(std::move(tensor));
  };
  const size_t groups =
      job_->pager() == nullptr ? 0 : job_->pager()->groups().size();
  for (size_t g = 0; g < groups; ++g) {
    const sharding::ParamGroup& group = *job_->pager()->groups()[g];
    for (size_t i = 0; i < group.parameters().size(); ++i) {
      const sharding::ParameterRecord& record = group.parameters()[i].record;
      add({.spec = whole_spec(record.spec.names, {}, group.original_dtype()),
           .of_experts = group.spec().of_experts,
           .group = static_cast<int>(g)},
          {record.tensor, i});
    }
  }
  const auto buffers = module.named_buffers();
  for (const auto& [name, tensor] : unpaged_tensors_of(module)) {
    TensorSpec spec = spec_of(tensor);
    spec.axes.clear();
    add({.spec = std::move(spec), .is_buffer = buffers.contains(name)},
        {tensor});
  }
  return tensors;
}

void WholeModel::join_parts(
    const std::vector<WholeTensor>& mine,
    bool of_experts) {
  json listed = json::array();
  for (const WholeTensor& tensor : mine) {
    if (tensor.of_experts == of_experts) {
      listed.push_back(to_json(tensor));
    }
  }
  int part = 0;
  for (const std::string& text :
       parts(of_experts).texts(listed.dump(), job_->watch())) {
    for (const json& from : json::parse(text)) {
      WholeTensor tensor = whole_tensor(from);
      tensor.of_experts = of_experts;
      tensor.part = part;
      tensor.spec.pipeline_stage = stage_of(part, of_experts);
      const auto [found, is_new] =
          index_.emplace(tensor.name(), tensors_.size());
      const size_t place = found->second;
      if (is_new) {
        tensors_.push_back(tensor);
        tensors_.back().spec.names.resize(1);
      }
      WholeTensor& known = tensors_[place];
      for (const std::string& name : tensor.spec.names) {
        if (index_.emplace(name, place).second) {
          known.spec.names.push_back(name);
        }
      }
      TESSERA_CHECK(
          known.spec.sizes == tensor.spec.sizes &&
              known.spec.dtype == tensor.spec.dtype,
          "'{}' has shape {} and type {} on {}, but {} and {} on {}. Different tensors on different pipeline stages, or of different experts, need different names: those of the whole model.",
          tensor.name(),
          c10::IntArrayRef(known.spec.sizes),
          known.spec.dtype,
          place_text(known),
          c10::IntArrayRef(tensor.spec.sizes),
          tensor.spec.dtype,
          place_text(tensor));
    }
    ++part;
  }
}

int WholeModel::stage_of(int part, bool of_experts) const {
  const int stages = job_->stages().count();
  return of_experts ? part / (job_->experts()->count() / stages) : part;
}

void WholeModel::sort_by_group() {
  std::stable_sort(
      tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
        const auto key = [](const WholeTensor& tensor) {
          return std::tuple(
              tensor.of_experts,
              tensor.spec.pipeline_stage,
              tensor.group < 0, // they come last
              tensor.group,
              tensor.part);
        };
        return key(a) < key(b);
      });
  for (size_t i = 0; i < tensors_.size(); ++i) {
    for (const std::string& name : tensors_[i].spec.names) {
      index_[name] = i;
    }
  }
}

const WholeTensor* WholeModel::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::vector<std::string> WholeModel::parameter_names() const {
  std::vector<std::string> names;
  for (const WholeTensor& tensor : tensors_) {
    if (!tensor.is_buffer) {
      names.insert(
          names.end(), tensor.spec.names.begin(), tensor.spec.names.end());
    }
  }
  return names;
}

at::Tensor WholeModel::whole_value(
    const WholeTensor& tensor,
    const at::Tensor& values) {
  engine::ModelParts& parts = this->parts(tensor.of_experts);
  at::Tensor value;
  if (tensor.part == parts.own()) {
    const Own& own = own_.at(tensor.name());
    value = tensor.group < 0 ? value_of(own.tensor)
                             : job_->pager()
                                   ->groups()[static_cast<size_t>(tensor.group)]
                                   ->view_of(values, own.position)
                                   .to(tensor.spec.dtype);
    value = job_->whole_value(spec_of(own.tensor), value);
  } else if (parts.is_first()) {
    value = at::empty(tensor.spec.sizes, tensor.spec.dtype);
  }
  parts.broadcast(tensor.part, value, job_->watch());
  return value;
}

void WholeModel::for_each(
    const std::function<void(const WholeTensor&, const at::Tensor&)>& visit,
    const std::function<bool(const WholeTensor&)>& wants) {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors_.size();) {
    const bool of_experts = tensors_[i].of_experts;
    const int stage = tensors_[i].spec.pipeline_stage;
    const int group = tensors_[i].group;
    std::vector<const WholeTensor*> wanted;
    for (;
         i < tensors_.size() && tensors_[i].of_experts == of_experts &&
         tensors_[i].spec.pipeline_stage == stage && tensors_[i].group == group;
         ++i) {
      if (!wants || wants(tensors_[i])) {
        wanted.push_back(&tensors_[i]);
      }
    }
    if (wanted.empty()) {
      continue;
    }
    at::Tensor values;
    // Each rank's values are those of its own part.
    if (group >= 0 &&
        job_->gathers_with(parts(of_experts), wanted.front()->part)) {
      values = job_->pager()->whole_master(static_cast<size_t>(group));
    }
    // A failing visit must not keep rank 0 from collectives that the others
    // wait for.
    std::exception_ptr error;
    for (const WholeTensor* tensor : wanted) {
      const at::Tensor value = whole_value(*tensor, values);
      if (job_->rank() != 0 || error) {
        continue;
      }
      try {
        visit(*tensor, value);
      } catch (...) {
        error = std::current_exception();
      }
    }
    // No rank is ahead by more than a group, and none waits for long.
    job_->on_all_ranks("processing the model's values on rank 0", [&] {
      if (error) {
        std::rethrow_exception(error);
      }
    });
  }
}

} // namespace tessera
