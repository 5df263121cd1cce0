// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/model_tensors.h"

#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/comm/on_all_ranks.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/paging/pager.h"
#include "tessera/sharding/tensors/tensor_blocks.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>

namespace tessera {

namespace {

using nlohmann::json;

/// A tensor as one rank lists it.
json to_json(const ModelTensor& tensor) {
  const TensorSlice& part = tensor.parts.front().part;
  json ranges = json::array();
  for (const DimRange& range : part.ranges) {
    ranges.push_back({range.dim, range.begin, range.end});
  }
  return {
      {"names", tensor.spec.names},
      {"dtype", static_cast<int>(tensor.spec.dtype)},
      {"sizes", tensor.spec.sizes},
      {"strides", tensor.strides},
      {"is_buffer", tensor.is_buffer},
      {"pipeline_stage", tensor.spec.pipeline_stage},
      {"page", tensor.page},
      {"ranges", std::move(ranges)},
      {"offset", part.offset},
      {"numel", part.numel}};
}

std::string list_text(const std::vector<ModelTensor>& local) {
  json tensors = json::array();
  for (const ModelTensor& tensor : local) {
    tensors.push_back(to_json(tensor));
  }
  return json{{"tensors", std::move(tensors)}, {"error", ""}}.dump();
}

ModelTensor listed_tensor(const json& from, int rank) {
  ModelTensor tensor{
      .spec = full_spec(
          from.at("names"),
          from.at("sizes"),
          static_cast<at::ScalarType>(from.at("dtype").get<int>())),
      .strides = from.at("strides"),
      .is_buffer = from.at("is_buffer"),
      .page = from.at("page"),
      .parts = {{rank, {{}, from.at("offset"), from.at("numel")}}}};
  tensor.spec.pipeline_stage = from.at("pipeline_stage");
  for (const json& range : from.at("ranges")) {
    tensor.parts.front().part.ranges.push_back(
        {range.at(0), range.at(1), range.at(2)});
  }
  return tensor;
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

/// Copies the elements of a part to their places.
/// @param whole contiguous if the part has some indices only.
/// @param elements contiguous.
void put_part(
    const at::Tensor& full,
    const TensorSlice& part,
    const at::Tensor& elements) {
  const auto item = static_cast<int64_t>(full.itemsize());
  auto* to = static_cast<char*>(full.mutable_data_ptr());
  const auto* from = static_cast<const char*>(elements.const_data_ptr());
  if (part.ranges.empty()) { // in the order of its memory
    std::memcpy(
        to + part.offset * item, from, static_cast<size_t>(part.numel * item));
    return;
  }
  const TensorSlice all{{}, 0, full.numel()};
  for (const sharding::CommonBlock& block :
       sharding::intersect(full.sizes(), all, part)) {
    sharding::for_each_segment(
        block, [&](int64_t here, int64_t there, int64_t n) {
          std::memcpy(
              to + here * item,
              from + there * item,
              static_cast<size_t>(n * item));
        });
  }
}

/// Whether the elements of the parts, one part after the other, are those of a
/// contiguous tensor.
bool is_in_order(const ModelTensor& tensor) {
  int64_t end = 0;
  for (const RankSlice& held : tensor.parts) {
    if (!held.part.ranges.empty() || held.part.offset != end) {
      return false;
    }
    end += held.part.numel;
  }
  return tensor.strides == sharding::row_major_strides(tensor.spec.sizes);
}

/// @param elements of all parts, one part after the other.
/// @return contiguous; `elements` themselves if they are that already.
at::Tensor assembled(const ModelTensor& tensor, const at::Tensor& elements) {
  if (is_in_order(tensor)) {
    return elements.view(tensor.spec.sizes);
  }
  const at::Tensor full =
      at::empty_strided(tensor.spec.sizes, tensor.strides, tensor.spec.dtype);
  int64_t begin = 0;
  for (const RankSlice& held : tensor.parts) {
    put_part(full, held.part, elements.narrow(0, begin, held.part.numel));
    begin += held.part.numel;
  }
  return full.contiguous();
}

} // namespace

ModelTensors::ModelTensors(
    sharding::Pager& pager,
    Communicator& files,
    const torch::nn::Module& module)
    : pager_(&pager), ranks_(&files) {
  pager.agree_on_files(sharding::FileUse::kGiveValues);
  join(module);
}

ModelTensors::ModelTensors(const torch::nn::Module& module) : ranks_(nullptr) {
  if (const auto tp = tensor_parallel_of(module)) {
    ranks_ = tp->group;
  }
  for (const auto& item : module.named_parameters()) {
    TESSERA_CHECK(
        !sharding::has_page_key(item.value()),
        "saving: '{}' is sharded; call Engine::save_weights(), or pass the engine too, on every rank.",
        item.key());
  }
  if (ranks_ == nullptr) {
    alone_ = std::make_unique<Communicator>("a module of one rank");
    ranks_ = alone_.get();
  }
  join(module);
}

int ModelTensors::tensor_rank() const {
  return pager_ == nullptr ? ranks_->rank()
                           : pager_->ranks().model().index(kTensorAxis);
}

int ModelTensors::tensor_size() const {
  return pager_ == nullptr ? ranks_->size()
                           : pager_->ranks().model().size(kTensorAxis);
}

WaitCheck ModelTensors::watch() const {
  return pager_ == nullptr ? WaitCheck()
                           : pager_->ranks().stage_waits().watch_stages(
                                 "saves or loads values of the model");
}

void ModelTensors::take_specs(const torch::nn::Module& module) {
  specs_ = specs_in(module);
  if (tensor_size() > 1) {
    return;
  }
  // Other ranks' partitions are out of reach: each rank's own are taken for the
  // whole.
  for (auto& [tensor, spec] : specs_) {
    spec.sizes = spec.local_sizes();
    spec.axes.clear();
  }
}

TensorSpec ModelTensors::spec_of(const at::Tensor& tensor) const {
  return tessera::spec_of(tensor, specs_);
}

std::vector<ModelTensor> ModelTensors::local_tensors(
    const torch::nn::Module& module) {
  std::vector<ModelTensor> local;
  if (pager_ != nullptr) {
    add_paged(local);
  }
  add_unpaged(module, local);
  for (ModelTensor& tensor : local) {
    tensor.spec.pipeline_stage =
        pager_ == nullptr
            ? 0
            : pager_->ranks().model().index(sharding::kPipelineAxis);
  }
  // What tensor-parallel ranks do not divide is the first one's.
  std::erase_if(local, [&](const ModelTensor& tensor) {
    return tensor_rank() > 0 && tensor.parts.front().part.ranges.empty();
  });
  return local;
}

void ModelTensors::add_paged(std::vector<ModelTensor>& local) {
  for (const auto& page : pager_->pages()) {
    const DeviceMesh& mesh = page->spec().mesh;
    for (size_t i = 0; i < page->parameters().size(); ++i) {
      const sharding::PagedParameter& parameter = page->parameters()[i];
      const at::Tensor& tensor = parameter.record.tensor;
      const std::vector<std::string>& names = parameter.record.spec.names;
      local_.emplace(names.front(), Local{tensor, page.get(), i});
      const TensorSpec spec = spec_of(tensor);
      const TensorSlice part =
          sharding::sharded_spec(spec, parameter, page->spec()).part();
      TESSERA_CHECK(
          part.ranges.empty() || tensor.is_contiguous(),
          "this rank's part of '{}' has sizes {} and strides {}; parts of parameters must be contiguous to be saved or loaded.",
          names.front(),
          tensor.sizes(),
          tensor.strides());
      // Somebody lists a tensor without elements, too.
      if (mesh.index(sharding::kReplicateAxis) > 0 ||
          (part.numel == 0 && mesh.index(kShardAxis) > 0)) {
        continue;
      }
      local.push_back(
          {.spec = full_spec(names, spec.sizes, page->original_dtype()),
           .strides = part.ranges.empty()
                          ? tensor.strides().vec()
                          : sharding::row_major_strides(spec.sizes),
           .page = page->number(),
           .parts = {{ranks_->rank(), part}}});
    }
  }
}

void ModelTensors::add_unpaged(
    const torch::nn::Module& module,
    std::vector<ModelTensor>& local) {
  const auto buffers = module.named_buffers();
  for (const auto& [name, tensor] : unpaged_tensors_of(module)) {
    TensorSpec spec = spec_of(tensor);
    const TensorSlice part = spec.part();
    spec.axes.clear();
    local_.emplace(spec.name(), Local{tensor});
    std::vector<int64_t> strides = sharding::row_major_strides(spec.sizes);
    local.push_back(
        {.spec = std::move(spec),
         .strides = std::move(strides),
         .is_buffer = buffers.contains(name),
         .parts = {{ranks_->rank(), part}}});
  }
}

void ModelTensors::join(const torch::nn::Module& module) {
  std::string text;
  std::exception_ptr thrown;
  try {
    take_specs(module);
    text = list_text(local_tensors(module));
  } catch (const std::exception& error) {
    thrown = std::current_exception();
    // Another error here would leave the other ranks waiting.
    text = json{{"tensors", json::array()}, {"error", error.what()}}.dump(
        -1, ' ', false, json::error_handler_t::replace);
  }
  const std::vector<std::string> texts =
      runtime::gather_texts(*ranks_, text, "the tensors of each rank", watch());
  if (thrown) {
    std::rethrow_exception(thrown);
  }
  for (size_t r = 0; r < texts.size(); ++r) {
    const json listed = json::parse(texts[r]);
    const int rank = static_cast<int>(r);
    const std::string failure = listed.at("error");
    TESSERA_CHECK(failure.empty(), "on rank {}: {}", rank, failure);
    for (const json& from : listed.at("tensors")) {
      add(listed_tensor(from, rank), rank);
    }
  }
  sort();
  check_complete();
  on_all_ranks("listing the tensors of the model", [&] {
    for (const auto& [name, local] : local_) {
      TESSERA_CHECK(
          find(name) != nullptr,
          "'{}' is not on the first of the tensor-parallel ranks, which has what they do not divide; build the same module on every rank.",
          name);
    }
  });
}

/// Ranks list their tensors in ascending order of pipeline stages.
void ModelTensors::add(ModelTensor listed, int rank) {
  const auto [found, is_new] = index_.emplace(listed.name(), tensors_.size());
  const size_t index = found->second;
  if (is_new) {
    tensors_.push_back(listed);
    tensors_.back().spec.names.resize(1);
    tensors_.back().parts.clear();
  }
  ModelTensor& known = tensors_[index];
  for (const std::string& name : listed.spec.names) {
    if (index_.emplace(name, index).second) {
      known.spec.names.push_back(name);
    }
  }
  const TensorSlice& part = listed.parts.front().part;
  const bool is_same_stage =
      known.spec.pipeline_stage == listed.spec.pipeline_stage;
  // What the engine does not shard, and nobody divides, ranks may have in
  // shapes of their own: the first rank's counts.
  const bool is_own_of_ranks = is_same_stage && known.page < 0 &&
                               listed.page < 0 && part.ranges.empty() &&
                               !known.parts.empty();
  TESSERA_CHECK(
      is_own_of_ranks || (known.spec.sizes == listed.spec.sizes &&
                          known.spec.dtype == listed.spec.dtype),
      "'{}' has shape {} and type {} on pipeline stage {}, but {} and {} on rank {} (pipeline stage {}). Different tensors on different pipeline stages, or of different experts, need different names: those of the whole model.",
      listed.name(),
      c10::IntArrayRef(known.spec.sizes),
      known.spec.dtype,
      known.spec.pipeline_stage,
      c10::IntArrayRef(listed.spec.sizes),
      listed.spec.dtype,
      rank,
      listed.spec.pipeline_stage);
  const bool has_elements = part.numel > 0 || known.spec.numel() == 0;
  const bool is_copy =
      is_own_of_ranks || !is_same_stage ||
      std::any_of(
          known.parts.begin(), known.parts.end(), [&](const RankSlice& held) {
            return held.part == part;
          });
  if (has_elements && !is_copy) {
    known.parts.push_back({rank, part});
  }
}

void ModelTensors::sort() {
  const auto position_of = [](const ModelTensor& tensor) {
    // Those without a page come last.
    return std::tuple(tensor.spec.pipeline_stage, tensor.page < 0, tensor.page);
  };
  std::stable_sort(
      tensors_.begin(), tensors_.end(), [&](const auto& a, const auto& b) {
        return position_of(a) < position_of(b);
      });
  for (size_t i = 0; i < tensors_.size(); ++i) {
    for (const std::string& name : tensors_[i].spec.names) {
      index_[name] = i;
    }
  }
}

/// The same on every rank, so that all throw.
void ModelTensors::check_complete() const {
  for (const ModelTensor& tensor : tensors_) {
    int64_t held = 0;
    bool is_divided = false;
    for (const RankSlice& one : tensor.parts) {
      held += one.part.numel;
      is_divided = is_divided || !one.part.ranges.empty();
    }
    // Of others, the gaps between elements are held as well.
    const auto all = static_cast<int64_t>(
        is_divided ? tensor.spec.numel()
                   : at::detail::computeStorageNbytes(
                         tensor.spec.sizes, tensor.strides, 1));
    TESSERA_CHECK(
        held == all && !tensor.parts.empty(),
        "the ranks hold {} of the {} elements of '{}'; is the module on all of them divided in the same way?",
        held,
        all,
        tensor.name());
  }
}

const ModelTensor* ModelTensors::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::vector<std::string> ModelTensors::parameter_names() const {
  std::vector<std::string> names;
  for (const ModelTensor& tensor : tensors_) {
    if (!tensor.is_buffer) {
      names.insert(
          names.end(), tensor.spec.names.begin(), tensor.spec.names.end());
    }
  }
  return names;
}

const RankSlice* ModelTensors::local_part(const ModelTensor& tensor) const {
  for (const RankSlice& held : tensor.parts) {
    if (held.rank == ranks_->rank()) {
      return &held;
    }
  }
  return nullptr;
}

bool ModelTensors::holds(const ModelTensor& tensor) const {
  return local_part(tensor) != nullptr;
}

bool ModelTensors::is_first_holder(const ModelTensor& tensor) const {
  return tensor.parts.front().rank == ranks_->rank();
}

at::Tensor ModelTensors::local_values(
    const ModelTensor& tensor,
    const TensorSlice& part) {
  const Local& local = local_.at(tensor.name());
  if (local.page == nullptr) {
    return value_of(local.tensor).detach().cpu().contiguous().view({-1});
  }
  if (read_.page != local.page) {
    read_ = {}; // two need not be in memory at the same time
    read_ = {local.page, pager_->scopes().read_master(*local.page)};
  }
  const sharding::PageSpec& page = local.page->spec();
  const runtime::FlatSpan span = page.parameters[local.position].span;
  const int64_t begin =
      part.numel == 0 ? 0 : span.begin + part.offset - page.shard().begin;
  return read_.values.narrow(0, begin, part.numel)
      .to(at::kCPU, tensor.spec.dtype)
      .contiguous();
}

at::Tensor ModelTensors::full_value(
    const ModelTensor& tensor,
    const at::Tensor& local) {
  const int rank = ranks_->rank();
  if (tensor.parts.size() == 1 && tensor.parts.front().rank == 0) {
    return rank == 0 ? assembled(tensor, local) : at::Tensor();
  }
  const auto item = static_cast<int64_t>(c10::elementSize(tensor.spec.dtype));
  const std::vector<int64_t> none(static_cast<size_t>(ranks_->size()), 0);
  AllToAllBlocks bytes{.taken = none, .sent = none};
  int64_t all = 0;
  if (local.defined()) {
    bytes.sent[0] = local.numel() * item;
  }
  if (rank == 0) {
    for (const RankSlice& held : tensor.parts) {
      bytes.taken[static_cast<size_t>(held.rank)] = held.part.numel * item;
      all += held.part.numel * item;
    }
  }
  const at::Tensor received = at::empty({all}, at::kByte);
  ranks_
      ->all_to_all(
          received,
          local.defined() ? local.view(at::kByte) : at::empty({0}, at::kByte),
          bytes,
          "parts of '" + tensor.name() + "' to rank 0")
      .wait(watch());
  return rank == 0 ? assembled(tensor, received.view(tensor.spec.dtype))
                   : at::Tensor();
}

void ModelTensors::for_each(
    const std::function<void(const ModelTensor&, const at::Tensor&)>& visit,
    const std::function<bool(const ModelTensor&)>& wants) {
  const c10::NoGradGuard no_grad;
  if (pager_ != nullptr) {
    pager_->agree_on_files(sharding::FileUse::kGiveValues);
  }
  // What fails on one rank must not keep it from collectives that the others
  // wait for.
  std::exception_ptr error;
  const auto guarded = [&](const std::function<void()>& work) {
    if (!error) {
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
    }
  };
  const auto settle = [&] {
    read_ = {};
    on_all_ranks("giving the model's values to rank 0", [&] {
      if (error) {
        std::rethrow_exception(error);
      }
    });
  };
  std::optional<std::pair<int, int>> last; // pipeline stage and page
  for (const ModelTensor& tensor : tensors_) {
    if (wants && !wants(tensor)) {
      continue;
    }
    const std::pair position(tensor.spec.pipeline_stage, tensor.page);
    if (last && last != position) {
      settle(); // no rank is ahead by more than a page
    }
    last = position;
    at::Tensor local;
    if (const RankSlice* held = local_part(tensor)) {
      guarded([&] { local = local_values(tensor, held->part); });
      if (!local.defined()) { // the others wait for something
        local = at::empty({held->part.numel}, tensor.spec.dtype);
      }
    }
    const at::Tensor value = full_value(tensor, local);
    if (ranks_->rank() == 0) {
      guarded([&] { visit(tensor, value); });
    }
  }
  settle();
}

void ModelTensors::on_all_ranks(
    const std::string& label,
    const std::function<void()>& work) {
  runtime::on_all_ranks(*ranks_, label, work, watch());
}

} // namespace tessera
