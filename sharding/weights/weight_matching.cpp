// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weights/weight_matching.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/name_patterns.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"
#include "tessera/sharding/tensors/tensor_io.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

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

bool is_convertible(const WeightEntry& entry, at::ScalarType dtype) {
  return at::isFloatingType(dtype)
             ? is_float(entry.dtype)
             : !is_float(entry.dtype) &&
                   loaded_dtype_of(entry.name, entry.dtype) == dtype;
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

std::vector<runtime::NamePattern> patterns_of(
    const std::vector<RenameRule>& rules) {
  std::vector<runtime::NamePattern> patterns;
  for (const RenameRule& rule : rules) {
    patterns.emplace_back("LoadWeightsOptions::rename_rules", rule.from);
  }
  return patterns;
}

std::string renamed_by(
    const std::vector<runtime::NamePattern>& patterns,
    const std::vector<RenameRule>& rules,
    const std::string& name) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    if (auto other = patterns[i].replaced(name, rules[i].to)) {
      return *other;
    }
  }
  return name;
}

/// @param renamed by the rules.
std::string unexpected_text(
    const std::string& name,
    const std::string& renamed,
    const LoadWeightsOptions& options,
    const std::vector<std::string>& candidates) {
  const std::string wanted = options.rename ? options.rename(renamed) : renamed;
  return formatted(
      "unexpected: '{}'{}{}",
      name,
      renamed == name ? "" : ", renamed to '" + renamed + "'",
      options.map ? "" : hint({wanted}, candidates));
}

/// Whether the checkpoint's tensor has all rows of the weight.
bool lies_within(const MappedWeight& weight) {
  std::vector<int64_t> rows = weight.shape;
  if (weight.is_transposed && rows.size() == 2) {
    std::swap(rows[0], rows[1]);
  }
  if (rows.empty() || rows.size() != weight.sizes.size()) {
    return rows.size() == weight.sizes.size() && weight.first_row == 0;
  }
  return weight.first_row >= 0 &&
         weight.first_row + weight.sizes[0] <= rows[0] &&
         std::equal(rows.begin() + 1, rows.end(), weight.sizes.begin() + 1);
}

/// The weight in the pieces of the checkpoint's tensor.
std::vector<FileRegion> source_of(
    const MappedWeight& weight,
    const WeightEntry& entry) {
  std::vector<FileRegion> source;
  for (FileRegion region : entry.regions) {
    TensorBlock& block = region.block;
    if (weight.is_transposed) {
      for (auto* one : {&block.begin, &block.sizes, &block.layout.strides}) {
        std::reverse(one->begin(), one->end());
      }
    }
    if (!block.sizes.empty()) {
      const int64_t begin = std::max(block.begin[0], weight.first_row);
      const int64_t end = std::min(
          block.begin[0] + block.sizes[0], weight.first_row + weight.sizes[0]);
      if (begin >= end) {
        continue;
      }
      block.layout.offset += (begin - block.begin[0]) * block.layout.strides[0];
      block.begin[0] = begin - weight.first_row;
      block.sizes[0] = end - begin;
    }
    source.push_back(std::move(region));
  }
  return source;
}

/// Whether a tensor of the checkpoint has the values that the target is loaded
/// with. Reads both where they are not the same bytes of a file.
/// @param source the whole target in `entry`.
bool has_values_of(
    const WeightTarget& target,
    const std::vector<FileRegion>& source,
    const WeightEntry& entry) {
  const auto is_same = [](const FileRegion& a, const FileRegion& b) {
    return a.data.data() == b.data.data() && a.block.begin == b.block.begin &&
           a.block.sizes == b.block.sizes &&
           a.block.layout.offset == b.block.layout.offset &&
           a.block.layout.strides == b.block.layout.strides;
  };
  if (entry.dtype == target.entry->dtype && std::equal(
                                                source.begin(),
                                                source.end(),
                                                target.source.begin(),
                                                target.source.end(),
                                                is_same)) {
    return true;
  }
  constexpr int64_t kElements = int64_t{1} << 20; // in memory at a time
  const std::vector<int64_t>& sizes = target.spec.sizes;
  const int64_t numel = numel_of(sizes, {});
  for (int64_t begin = 0; begin < numel; begin += kElements) {
    const int64_t count = std::min(kElements, numel - begin);
    const auto blocks = blocks_of(sizes, TensorSlice{{}, begin, count});
    const at::Tensor first = at::empty({count}, target.tensor.scalar_type());
    const at::Tensor second = at::empty_like(first);
    read_regions(*target.entry, target.source, blocks, first);
    read_regions(entry, source, blocks, second);
    if (!std::ranges::equal(raw_bytes(first), raw_bytes(second))) {
      return false;
    }
  }
  return true;
}

/// Finds an entry for each target.
/// @throws tessera::Error when something does not match.
class Matching {
 public:
  Matching(
      std::vector<WeightTarget>& targets,
      const WeightFiles& files,
      const LoadWeightsOptions& options)
      : targets_(targets),
        files_(files),
        options_(options),
        only_("LoadWeightsOptions::only", options.only),
        except_("LoadWeightsOptions::except", options.except),
        renamed_(patterns_of(options.rename_rules)) {
    for (size_t i = 0; i < targets_.size(); ++i) {
      for (const std::string& name : targets_[i].spec.names) {
        index_.emplace(name, i);
        all_names_.push_back(name);
      }
      targets_[i].is_chosen = is_chosen(targets_[i].spec.names);
    }
  }

  WeightMatches match() {
    check_rules_used();
    for (const auto& [name, entry] : files_.entries()) {
      take(name, entry);
    }
    for (const WeightTarget& target : targets_) {
      note_result(target);
    }
    TESSERA_CHECK(
        wrong_.empty(),
        "the weights in {} do not match the model; were they saved by another one, or with another config.json?{}",
        files_.path(),
        wrong_.text());
    WeightMatches matches{std::move(report_), only_.unused()};
    for (const std::string& pattern : except_.unused()) {
      matches.unused_patterns.push_back(pattern);
    }
    return matches;
  }

 private:
  /// A rule that matches nothing is mostly a mistake, which `strict` would not
  /// find where names may be missing.
  void check_rules_used() const {
    std::vector<std::string> names;
    for (const auto& [name, entry] : files_.entries()) {
      names.push_back(name);
    }
    for (const runtime::NamePattern& rule : renamed_) {
      TESSERA_CHECK(
          std::any_of(
              names.begin(),
              names.end(),
              [&](const std::string& name) { return rule.matches(name); }),
          "LoadWeightsOptions::rename_rules: '{}' matches no whole name of a tensor in {}{}.",
          rule.text(),
          files_.path(),
          rule.nearest_hint(names));
    }
  }

  bool is_chosen(const std::vector<std::string>& names) {
    bool is_wanted = options_.only.empty();
    bool is_excepted = false;
    // All: patterns count as used.
    for (const std::string& name :
         runtime::with_other_names(names, options_.other_names)) {
      is_wanted = only_.first_match(name).has_value() || is_wanted;
      is_excepted = except_.first_match(name).has_value() || is_excepted;
    }
    return is_wanted && !is_excepted;
  }

  /// The name that `map` or the module have to know.
  std::string renamed(const std::string& name) const {
    return renamed_by(renamed_, options_.rename_rules, name);
  }

  /// The tensors of the module in a tensor of the checkpoint.
  std::optional<std::vector<MappedWeight>> mapped(const std::string& in_file) {
    const std::string name = renamed(in_file);
    if (name.empty()) {
      return std::vector<MappedWeight>();
    }
    if (options_.map) {
      return options_.map(name);
    }
    const std::string wanted = options_.rename ? options_.rename(name) : name;
    if (wanted.empty()) {
      return std::vector<MappedWeight>();
    }
    const auto found = index_.find(wanted);
    if (found == index_.end()) {
      return std::nullopt;
    }
    const std::vector<int64_t>& sizes = targets_[found->second].spec.sizes;
    return std::vector<MappedWeight>{{wanted, sizes, sizes}};
  }

  void take(const std::string& name, const WeightEntry& entry) {
    const auto weights = mapped(name);
    if (!weights) {
      note_unexpected(name);
      return;
    }
    used_.insert(name);
    bool is_taken = false;
    for (const MappedWeight& weight : *weights) {
      const auto found = index_.find(weight.name);
      TESSERA_CHECK(
          found != index_.end(),
          "LoadWeightsOptions::map: '{}', for '{}', is not a parameter of the model{}",
          weight.name,
          name,
          hint({weight.name}, all_names_));
      if (targets_[found->second].is_chosen) {
        assign(targets_[found->second], weight, entry);
        is_taken = true;
      }
    }
    if (!is_taken) {
      report_.left_out.push_back(name);
    }
  }

  void note_unexpected(const std::string& name) {
    report_.unexpected.push_back(name);
    if (options_.strict && !options_.allows_unexpected) {
      wrong_.add(unexpected_text(name, renamed(name), options_, all_names_));
    }
  }

  void assign(
      WeightTarget& target,
      const MappedWeight& weight,
      const WeightEntry& entry) {
    const at::ScalarType dtype = target.tensor.scalar_type();
    target.is_found = true;
    if (!taken_.insert(weight.name).second) {
      wrong_.add(formatted(
          "two tensors for '{}', one of them '{}'", weight.name, entry.name));
    } else if (entry.shape != weight.shape && !options_.strict) {
      report_.other_shapes.push_back(
          {target.spec.name(), entry.name, weight.shape, entry.shape});
    } else if (entry.shape != weight.shape) {
      wrong_.add(formatted(
          "shape of '{}': {}, but the model's is {}",
          entry.name,
          at::IntArrayRef(entry.shape),
          at::IntArrayRef(weight.shape)));
    } else if (weight.sizes != target.spec.sizes || !lies_within(weight)) {
      TESSERA_FAIL(
          "LoadWeightsOptions::map: '{}' for '{}' has sizes {}, which are not those of {} or lie outside it",
          entry.name,
          weight.name,
          at::IntArrayRef(weight.sizes),
          at::IntArrayRef(target.spec.sizes));
    } else if (!is_convertible(entry, dtype)) {
      wrong_.add(formatted(
          "dtype of '{}': {}, but the model's is {}{}",
          entry.name,
          name_of(entry.dtype),
          dtype,
          at::isFloatingType(dtype) ? "; F64, F32, F16 and BF16 are converted"
                                    : ""));
    } else if (target.entry == nullptr) {
      // A tied target is found by one of its names.
      target.entry = &entry;
      target.source = source_of(weight, entry);
    } else if (!has_values_of(target, source_of(weight, entry), entry)) {
      note_second_values(target, entry);
    }
  }

  /// Under another name of a tied target.
  void note_second_values(
      const WeightTarget& target,
      const WeightEntry& entry) {
    report_.left_out.push_back(entry.name);
    if (options_.strict) {
      wrong_.add(formatted(
          "'{}': it has other values than '{}', and both are names of one parameter of the model, '{}'; load it into a model that has two, or leave one of them out (a rule of rename_rules with an empty name, or rename)",
          entry.name,
          target.entry->name,
          target.spec.name()));
    }
  }

  void note_result(const WeightTarget& target) {
    if (!target.is_chosen) {
      report_.not_chosen.push_back(target.spec.name());
    } else if (target.entry != nullptr) {
      report_.loaded.push_back({target.spec.name(), target.entry->name});
    } else if (!target.is_found) {
      note_missing(target);
    }
  }

  void note_missing(const WeightTarget& target) {
    if (options_.strict &&
        !starts_with_any(target.spec.names, options_.may_be_missing)) {
      std::vector<std::string> known;
      for (const auto& [name, entry] : files_.entries()) {
        if (!used_.count(name)) {
          known.push_back(renamed(name));
        }
      }
      std::vector<std::string> names = target.spec.names;
      for (std::string& name : names) {
        name = options_.checkpoint_name ? options_.checkpoint_name(name) : name;
      }
      wrong_.add(formatted(
          "missing: {}'{}'{}",
          target.is_buffer ? "buffer " : "",
          names.front(),
          hint(names, known)));
    }
    (target.is_buffer ? report_.missing_buffers : report_.missing)
        .push_back(target.spec.name());
  }

  std::vector<WeightTarget>& targets_;
  const WeightFiles& files_;
  const LoadWeightsOptions& options_;
  runtime::NamePatterns only_;
  runtime::NamePatterns except_;
  std::vector<runtime::NamePattern> renamed_; ///< of the rules
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
  TensorSpecs specs = specs_in(module);
  const auto add = [&](const at::Tensor& tensor, bool is_buffer) {
    // A tied tensor is taken with its first name.
    if (auto spec = specs.extract(tensor.unsafeGetTensorImpl())) {
      targets.push_back({std::move(spec.mapped()), tensor, is_buffer});
    }
  };
  for (const auto& item : module.named_parameters()) {
    add(item.value(), false);
  }
  for (const auto& item : module.named_buffers()) {
    add(item.value(), true);
  }
  return targets;
}

std::string unexpected_text(
    const std::string& name,
    const LoadWeightsOptions& options,
    const std::vector<std::string>& candidates) {
  return unexpected_text(
      name,
      renamed_by(patterns_of(options.rename_rules), options.rename_rules, name),
      options,
      candidates);
}

WeightMatches find_matches(
    std::vector<WeightTarget>& targets,
    const WeightFiles& files,
    const LoadWeightsOptions& options) {
  return Matching(targets, files, options).match();
}

void check_patterns_used(
    const std::vector<std::string>& unused_patterns,
    const std::vector<std::string>& names) {
  TESSERA_CHECK(
      unused_patterns.empty(),
      "LoadWeightsOptions: '{}', of `only` or `except`, matches none of the model{}.",
      unused_patterns.front(),
      runtime::NamePattern("LoadWeightsOptions", unused_patterns.front())
          .nearest_hint(names));
}

std::vector<std::string> names_of(
    const std::vector<WeightTarget>& targets,
    const OtherNames& others) {
  std::vector<std::string> names;
  for (const WeightTarget& target : targets) {
    for (std::string& name :
         runtime::with_other_names(target.spec.names, others)) {
      names.push_back(std::move(name));
    }
  }
  return names;
}

LoadWeightsReport match_weights(
    std::vector<WeightTarget>& targets,
    const WeightFiles& files,
    const LoadWeightsOptions& options) {
  WeightMatches matches = find_matches(targets, files, options);
  check_patterns_used(
      matches.unused_patterns, names_of(targets, options.other_names));
  return std::move(matches.report);
}

} // namespace tessera::sharding

namespace tessera {

void visit_fields(runtime::OptionFields& fields, RenameRule& rule) {
  fields.field(
      runtime::required("from"),
      rule.from,
      "regular expression (ECMAScript) that matches whole names");
  fields.field(
      "to",
      rule.to,
      "the new name, in which $1 is what the first group matched; an empty one leaves the tensor out");
}

} // namespace tessera
