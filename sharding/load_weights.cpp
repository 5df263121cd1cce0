// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/load_weights.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/memory/flat_layout.h"
#include "tessera/sharding/deferred_init.h"
#include "tessera/sharding/pager.h"

#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tessera {

namespace {

namespace fs = std::filesystem;

/// A tensor of the module and what the checkpoint has for it.
struct Target {
  std::vector<std::string> names;
  at::Tensor tensor;
  bool is_buffer = false;
  bool is_found = false; ///< by name
  const SafetensorsEntry* entry = nullptr; ///< null: keeps what it holds
};

/// Collects findings, so that one message names them all.
class Findings {
 public:
  template <typename... Parts>
  void add(const Parts&... parts) {
    constexpr int kShown = 20;
    if (++count_ <= kShown) {
      text_ << "\n  " << detail::concat(parts...);
    } else if (count_ == kShown + 1) {
      text_ << "\n  and more";
    }
  }
  bool empty() const {
    return count_ == 0;
  }
  std::string text() const {
    return text_.str();
  }

 private:
  int count_ = 0;
  std::ostringstream text_;
};

std::vector<Target> targets_in(const torch::nn::Module& module) {
  std::vector<Target> targets;
  std::unordered_map<const c10::TensorImpl*, size_t> index;
  const auto add =
      [&](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
        if (!tensor.defined()) {
          return;
        }
        const auto [found, is_new] =
            index.emplace(tensor.unsafeGetTensorImpl(), targets.size());
        if (is_new) {
          targets.push_back({{}, tensor, is_buffer});
        }
        targets[found->second].names.push_back(name);
      };
  for (const auto& item : module.named_parameters()) {
    add(item.key(), item.value(), false);
  }
  for (const auto& item : module.named_buffers()) {
    add(item.key(), item.value(), true);
  }
  return targets;
}

bool is_float(SafetensorsDtype dtype) {
  return dtype == SafetensorsDtype::kF32 || dtype == SafetensorsDtype::kF16 ||
         dtype == SafetensorsDtype::kBF16 || dtype == SafetensorsDtype::kF64;
}

bool is_convertible(const SafetensorsEntry& entry, at::ScalarType dtype) {
  return at::isFloatingType(dtype)
             ? is_float(entry.dtype)
             : !is_float(entry.dtype) && scalar_type_of(entry) == dtype;
}

bool starts_with_any(
    const std::vector<std::string>& names,
    const std::vector<std::string>& prefixes) {
  return std::any_of(names.begin(), names.end(), [&](const auto& name) {
    return std::any_of(
        prefixes.begin(), prefixes.end(), [&](const std::string& prefix) {
          return name.starts_with(prefix);
        });
  });
}

std::string hint(
    const std::vector<std::string>& names,
    const std::vector<std::string>& candidates) {
  for (const std::string& name : names) {
    const std::string nearest = nearest_name(name, candidates);
    if (!nearest.empty()) {
      return "; the nearest is '" + nearest + "'";
    }
  }
  return "";
}

/// Finds an entry for each target. @throws when something does not fit.
class Matching {
 public:
  Matching(
      std::vector<Target>& targets,
      const WeightFiles& files,
      const LoadWeightsOptions& options)
      : targets_(targets), files_(files), options_(options) {
    for (size_t i = 0; i < targets_.size(); ++i) {
      for (const std::string& name : targets_[i].names) {
        index_.emplace(name, i);
        all_names_.push_back(name);
      }
    }
  }

  LoadWeightsReport match() {
    for (const auto& [name, entry] : files_.entries()) {
      take(name, *entry);
    }
    for (const Target& target : targets_) {
      if (!target.is_found && !target.is_buffer) {
        note_missing(target);
      }
    }
    TESSERA_CHECK(
        wrong_.empty(),
        "the weights in ",
        files_.path(),
        " do not fit the model; do config.json and the weights belong "
        "together?",
        wrong_.text());
    return std::move(report_);
  }

 private:
  void take(const std::string& name, const SafetensorsEntry& entry) {
    const std::string wanted = options_.rename ? options_.rename(name) : name;
    if (wanted.empty()) {
      report_.left_out.push_back(name);
      return;
    }
    const auto found = index_.find(wanted);
    if (found == index_.end()) {
      report_.unexpected.push_back(name);
      if (options_.strict) {
        wrong_.add("unexpected: '", name, "'", hint({wanted}, all_names_));
      }
      return;
    }
    Target& target = targets_[found->second];
    target.is_found = true;
    used_.insert(name);
    if (!taken_.insert(wanted).second) {
      wrong_.add("two tensors for '", wanted, "', one of them '", name, "'");
    } else if (target.tensor.sizes() != at::IntArrayRef(entry.shape)) {
      wrong_.add(
          "shape of '",
          name,
          "': ",
          at::IntArrayRef(entry.shape),
          ", but the model's is ",
          target.tensor.sizes());
    } else if (!is_convertible(entry, target.tensor.scalar_type())) {
      wrong_.add(
          "dtype of '",
          name,
          "': ",
          name_of(entry.dtype),
          ", but the model's is ",
          target.tensor.scalar_type(),
          at::isFloatingType(target.tensor.scalar_type())
              ? "; F64, F32, F16 and BF16 are converted"
              : "");
    } else if (target.entry == nullptr) {
      target.entry = &entry; // A tied one is taken by one of its names.
    }
  }

  void note_missing(const Target& target) {
    if (options_.strict &&
        !starts_with_any(target.names, options_.may_be_missing)) {
      std::vector<std::string> known;
      for (const auto& [name, entry] : files_.entries()) {
        if (!used_.count(name)) {
          known.push_back(name);
        }
      }
      wrong_.add(
          "missing: '", target.names.front(), "'", hint(target.names, known));
    }
    report_.missing.push_back(target.names.front());
  }

  std::vector<Target>& targets_;
  const WeightFiles& files_;
  const LoadWeightsOptions& options_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<std::string> all_names_;
  std::unordered_set<std::string> taken_; ///< names of the module
  std::unordered_set<std::string> used_; ///< names of the checkpoint
  Findings wrong_;
  LoadWeightsReport report_;
};

/// A parameter's place in a flat buffer and what goes there.
struct FlatWeight {
  const SafetensorsEntry* entry = nullptr;
  FlatSpan span;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool is_contiguous = true;
};

FlatWeight flat_weight(const Target& target, int64_t begin) {
  return {
      target.entry,
      {begin, storage_extent(target.tensor)},
      target.tensor.sizes().vec(),
      target.tensor.strides().vec(),
      target.tensor.is_contiguous()};
}

/// Writes the part of the weight that lies in `slice`, which begins at element
/// `first` of the flat buffer.
void read_part(
    const FlatWeight& weight,
    const at::Tensor& slice,
    int64_t first) {
  const int64_t from = std::max(first, weight.span.begin);
  const int64_t to = std::min(first + slice.numel(), weight.span.end());
  if (from >= to) {
    return;
  }
  const at::Tensor part = slice.narrow(0, from - first, to - from);
  const int64_t offset = from - weight.span.begin;
  if (weight.is_contiguous) {
    read_elements(*weight.entry, offset, part);
    return;
  }
  // Rows of the file are scattered over the buffer, perhaps with gaps.
  const at::Tensor values = at::zeros({weight.span.numel}, slice.options());
  const at::Tensor is_written = values.to(at::kBool);
  read_whole(*weight.entry, values.as_strided(weight.sizes, weight.strides));
  is_written.as_strided(weight.sizes, weight.strides).fill_(true);
  part.copy_(at::where(
      is_written.narrow(0, offset, part.numel()),
      values.narrow(0, offset, part.numel()),
      part));
}

/// A DeferredInit's fill function that reads files.
struct FileFill {
  std::shared_ptr<const WeightFiles> files;
  std::vector<FlatWeight> weights;
  /// Makes the elements that no weight covers; may be empty.
  std::function<void(const at::Tensor&, int64_t)> rest;

  void operator()(const at::Tensor& slice, int64_t first_element) const {
    const c10::NoGradGuard no_grad;
    if (rest) {
      rest(slice, first_element);
    }
    for (const FlatWeight& weight : weights) {
      read_part(weight, slice, first_element);
    }
  }
};

void defer_reading(
    c10::StorageImpl& storage,
    const std::vector<const Target*>& targets,
    const std::shared_ptr<const WeightFiles>& files) {
  FileFill fill{files, {}, {}};
  int64_t covered = 0;
  for (const Target* target : targets) {
    fill.weights.push_back(
        flat_weight(*target, target->tensor.storage_offset()));
    covered += target->tensor.nbytes();
  }
  if (covered < static_cast<int64_t>(storage.nbytes())) {
    fill.rest = deferred_init(storage)->fill;
  }
  set_deferred_init(
      storage,
      {std::move(fill), "parameter '" + targets.front()->names.front() + "'"});
}

} // namespace

LoadWeightsReport load_weights(
    torch::nn::Module& module,
    const fs::path& path,
    const LoadWeightsOptions& options) {
  const auto files =
      std::make_shared<const WeightFiles>(WeightFiles::open(path));
  auto targets = targets_in(module);
  auto report = Matching(targets, *files, options).match();
  std::unordered_map<c10::StorageImpl*, std::vector<const Target*>> deferred;
  for (const Target& target : targets) {
    if (target.entry == nullptr) {
      continue;
    }
    if (is_deferred(target.tensor)) {
      deferred[target.tensor.storage().unsafeGetStorageImpl()].push_back(
          &target);
    } else {
      read_whole(*target.entry, target.tensor);
    }
  }
  for (const auto& [storage, members] : deferred) {
    defer_reading(*storage, members, files);
  }
  return report;
}

LoadWeightsReport load_sharded_weights(
    Pager& pager,
    torch::nn::Module& module,
    const fs::path& path,
    const LoadWeightsOptions& options) {
  const c10::NoGradGuard no_grad;
  const auto files = WeightFiles::open(path);
  auto targets = targets_in(module);
  auto report = Matching(targets, files, options).match();
  std::unordered_map<const c10::TensorImpl*, const Target*> by_tensor;
  for (const Target& target : targets) {
    by_tensor.emplace(target.tensor.unsafeGetTensorImpl(), &target);
  }
  for (const auto& group : pager.groups()) {
    const FlatSpan mine = group->layout().shard(pager.rank());
    for (const PagedParameter& parameter : group->parameters()) {
      const auto found =
          by_tensor.find(parameter.record.tensor.unsafeGetTensorImpl());
      if (found == by_tensor.end() || found->second->entry == nullptr) {
        continue;
      }
      read_part(
          flat_weight(*found->second, parameter.span.begin),
          group->master(),
          mine.begin);
      by_tensor.erase(found);
    }
  }
  // Buffers, and parameters that the engine leaves alone.
  for (const auto& [tensor, target] : by_tensor) {
    if (target->entry != nullptr) {
      read_whole(*target->entry, target->tensor);
    }
  }
  pager.shards_were_written();
  return report;
}

} // namespace tessera
