// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weight_matching.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tessera::sharding {

namespace {

/// Collects findings, so that one message names them all.
class Findings {
 public:
  /// @param finding one line.
  void add(const std::string& finding) {
    constexpr int kShown = 20;
    if (++count_ <= kShown) {
      text_ << "\n  " << finding;
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

bool is_float(runtime::SafetensorsDtype dtype) {
  return dtype == runtime::SafetensorsDtype::kF32 ||
         dtype == runtime::SafetensorsDtype::kF16 ||
         dtype == runtime::SafetensorsDtype::kBF16 ||
         dtype == runtime::SafetensorsDtype::kF64;
}

bool is_convertible(
    const runtime::SafetensorsEntry& entry,
    at::ScalarType dtype) {
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
    const std::string nearest = runtime::nearest_name(name, candidates);
    if (!nearest.empty()) {
      return "; the nearest is '" + nearest + "'";
    }
  }
  return "";
}

/// Finds an entry for each target.
/// @throws tessera::Error when something does not match.
class Matching {
 public:
  Matching(
      std::vector<WeightTarget>& targets,
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
    for (const WeightTarget& target : targets_) {
      if (!target.is_found && !target.is_buffer) {
        note_missing(target);
      }
    }
    TESSERA_CHECK(
        wrong_.empty(),
        "the weights in {} do not match the model; do config.json and the weights belong together?{}",
        files_.path(),
        wrong_.text());
    return std::move(report_);
  }

 private:
  void take(const std::string& name, const runtime::SafetensorsEntry& entry) {
    if (options_.pieces) {
      take_pieces(name, entry);
      return;
    }
    const std::string wanted = options_.rename ? options_.rename(name) : name;
    if (wanted.empty()) {
      report_.left_out.push_back(name);
      return;
    }
    const auto found = index_.find(wanted);
    if (found == index_.end()) {
      note_unexpected(name, hint({wanted}, all_names_));
      return;
    }
    used_.insert(name);
    WeightTarget& target = targets_[found->second];
    assign(
        target,
        wanted,
        name,
        target.tensor.sizes().vec(),
        EntryView::whole(entry));
  }

  void take_pieces(
      const std::string& name,
      const runtime::SafetensorsEntry& entry) {
    const auto pieces = options_.pieces(name);
    if (!pieces) {
      note_unexpected(name, "");
      return;
    }
    if (pieces->empty()) {
      report_.left_out.push_back(name);
      return;
    }
    used_.insert(name);
    for (const WeightPiece& piece : *pieces) {
      const auto found = index_.find(piece.name);
      TESSERA_CHECK(
          found != index_.end(),
          "LoadWeightsOptions::pieces: '{}', for '{}', is not a parameter of the model{}",
          piece.name,
          name,
          hint({piece.name}, all_names_));
      assign(
          targets_[found->second],
          piece.name,
          name,
          piece.shape,
          {&entry, piece.offset, piece.sizes, piece.strides});
    }
  }

  void note_unexpected(const std::string& name, const std::string& nearest) {
    report_.unexpected.push_back(name);
    if (options_.strict && !options_.allows_unexpected) {
      wrong_.add(formatted("unexpected: '{}'{}", name, nearest));
    }
  }

  void assign(
      WeightTarget& target,
      const std::string& wanted,
      const std::string& name,
      const std::vector<int64_t>& shape,
      EntryView source) {
    const runtime::SafetensorsEntry& entry = *source.entry;
    target.is_found = true;
    if (!taken_.insert(wanted).second) {
      wrong_.add(
          formatted("two tensors for '{}', one of them '{}'", wanted, name));
    } else if (entry.shape != shape) {
      wrong_.add(formatted(
          "shape of '{}': {}, but the model's is {}",
          name,
          at::IntArrayRef(entry.shape),
          at::IntArrayRef(shape)));
    } else if (
        source.numel() != target.tensor.numel() ||
        !source.lies_within_entry()) {
      TESSERA_FAIL(
          "LoadWeightsOptions::pieces: the piece of '{}' for '{}' has sizes {}, which are not those of {} or lie outside it",
          name,
          wanted,
          at::IntArrayRef(source.sizes),
          target.tensor.sizes());
    } else if (!is_convertible(entry, target.tensor.scalar_type())) {
      wrong_.add(formatted(
          "dtype of '{}': {}, but the model's is {}{}",
          name,
          name_of(entry.dtype),
          target.tensor.scalar_type(),
          at::isFloatingType(target.tensor.scalar_type())
              ? "; F64, F32, F16 and BF16 are converted"
              : ""));
    } else if (target.source.entry == nullptr) {
      // A tied target is found by one of its names.
      target.source = std::move(source);
    }
  }

  void note_missing(const WeightTarget& target) {
    if (options_.strict &&
        !starts_with_any(target.names, options_.may_be_missing)) {
      std::vector<std::string> known;
      for (const auto& [name, entry] : files_.entries()) {
        if (!used_.count(name)) {
          known.push_back(name);
        }
      }
      std::vector<std::string> names = target.names;
      for (std::string& name : names) {
        name = options_.checkpoint_name ? options_.checkpoint_name(name) : name;
      }
      wrong_.add(
          formatted("missing: '{}'{}", names.front(), hint(names, known)));
    }
    report_.missing.push_back(target.names.front());
  }

  std::vector<WeightTarget>& targets_;
  const WeightFiles& files_;
  const LoadWeightsOptions& options_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<std::string> all_names_;
  std::unordered_set<std::string> taken_; ///< names in the module
  std::unordered_set<std::string> used_; ///< names in the checkpoint
  Findings wrong_;
  LoadWeightsReport report_;
};

} // namespace

std::vector<WeightTarget> weight_targets_in(const torch::nn::Module& module) {
  std::vector<WeightTarget> targets;
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

LoadWeightsReport match_weights(
    std::vector<WeightTarget>& targets,
    const WeightFiles& files,
    const LoadWeightsOptions& options) {
  return Matching(targets, files, options).match();
}

} // namespace tessera::sharding
