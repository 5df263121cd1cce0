// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/pages/grouping.h"

#include "tessera/sharding/groups/module_blocks.h"

#include <algorithm>
#include <compare>
#include <iterator>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tessera::sharding {

namespace {

using torch::nn::Module;
using RecordOf = std::unordered_map<const c10::TensorImpl*, ParameterRecord>;

/// A group before merging.
struct Candidate {
  PageSpec spec;
  bool may_be_collected = true; ///< with other small ones
  bool may_merge = true; ///< with its neighbors
};

/// Elements of the whole parameters: tensor-parallel ranks with partitions of
/// different sizes must divide them into the same groups.
int64_t numel_of(const PageSpec& group) {
  int64_t numel = 0;
  for (const PagedParameter& parameter : group.parameters) {
    numel += parameter.record.spec.numel();
  }
  return numel;
}

/// Groups are merged only if these are equal.
using Wishes = std::pair<std::optional<bool>, std::optional<int>>;

Wishes wishes_of(const PageSpec& group) {
  return {group.reshard_after_forward, group.zero_stage};
}

/// Returns the storages that are used by more than one piece; they form groups
/// of their own.
std::unordered_set<const c10::StorageImpl*> shared_storages(
    const std::vector<ModuleUnit>& units,
    const RecordOf& records) {
  std::unordered_set<const c10::StorageImpl*> shared;
  std::unordered_map<const c10::StorageImpl*, size_t> first_unit;
  for (size_t i = 0; i < units.size(); ++i) {
    for (const auto* impl : units[i].parameters) {
      const auto record = records.find(impl);
      if (record == records.end()) {
        continue; // ignored
      }
      const auto* storage = storage_of(record->second);
      const auto [found, is_new] = first_unit.emplace(storage, i);
      if (!is_new && found->second != i) {
        shared.insert(storage);
      }
    }
  }
  return shared;
}

/// Whether one of the parameter's names is a group of its own.
bool is_apart(
    const ParameterRecord& record,
    const ModuleChoices& choices,
    const std::set<std::string>& apart) {
  return std::any_of(
      record.spec.names.begin(),
      record.spec.names.end(),
      [&](const auto& name) {
        return choices.is_group(name) || apart.contains(name);
      });
}

std::vector<Candidate> candidates_of(
    const std::vector<ModuleUnit>& units,
    const RecordOf& records,
    const ModuleChoices& choices,
    const std::set<std::string>& apart) {
  const auto shared = shared_storages(units, records);
  std::vector<Candidate> groups;
  std::vector<Candidate> shared_groups;
  std::unordered_map<const c10::StorageImpl*, size_t> shared_group;
  std::unordered_set<const c10::TensorImpl*> placed;
  for (const auto& unit : units) {
    Candidate group;
    group.spec.name = unit.path.empty() ? "root" : unit.path;
    group.may_be_collected = !unit.is_named && !unit.is_apart;
    group.may_merge = !unit.is_apart;
    for (const auto* impl : unit.parameters) {
      const auto found_record = records.find(impl);
      if (found_record == records.end() || !placed.insert(impl).second) {
        continue;
      }
      const ParameterRecord& record = found_record->second;
      const auto* storage = storage_of(record);
      const bool alone = is_apart(record, choices, apart);
      if (!alone && !shared.count(storage)) {
        group.spec.parameters.push_back({record});
        continue;
      }
      const auto [found, is_new] =
          shared_group.emplace(storage, shared_groups.size());
      if (is_new) {
        Candidate local;
        local.spec.name = record.name();
        local.spec.scattered = true;
        local.spec.is_apart = alone;
        local.may_be_collected = !unit.is_apart && !alone;
        local.may_merge = false;
        shared_groups.push_back(std::move(local));
      }
      shared_groups[found->second].spec.parameters.push_back({record});
    }
    if (!group.spec.parameters.empty()) {
      groups.push_back(std::move(group));
    }
  }
  // Tied weights are used early and late; their groups come first, as those of
  // embeddings do.
  groups.insert(
      groups.begin(),
      std::make_move_iterator(shared_groups.begin()),
      std::make_move_iterator(shared_groups.end()));
  return groups;
}

void apply_choices(
    const ModuleChoices& choices,
    std::vector<Candidate>& groups) {
  std::vector<std::string> names;
  for (Candidate& group : groups) {
    names.push_back(group.spec.name);
    group.spec.zero_stage = choices.zero_stage(group.spec.name);
    group.spec.reshard_after_forward =
        choices.reshard_after_forward(group.spec.name);
  }
  choices.check_all_used(names);
}

void append(PageSpec& target, PageSpec&& group) {
  target.name += "+" + group.name;
  std::move(
      group.parameters.begin(),
      group.parameters.end(),
      std::back_inserter(target.parameters));
}

/// Merges consecutive groups, up to a size. Their gradients arrive
/// consecutively, so merged groups are not scattered.
std::vector<Candidate> merge_neighbours(
    std::vector<Candidate> groups,
    int64_t max_numel) {
  std::vector<Candidate> merged;
  for (Candidate& group : groups) {
    Candidate* last = merged.empty() ? nullptr : &merged.back();
    if (last != nullptr && last->may_merge && group.may_merge &&
        wishes_of(last->spec) == wishes_of(group.spec) &&
        numel_of(last->spec) + numel_of(group.spec) <= max_numel) {
      append(last->spec, std::move(group.spec));
      last->may_be_collected = last->may_be_collected && group.may_be_collected;
    } else {
      merged.push_back(std::move(group));
    }
  }
  return merged;
}

/// Merges small groups, in order, until a group reaches the minimum.
std::vector<PageSpec> collect_small(
    std::vector<Candidate> groups,
    int64_t min_numel) {
  std::vector<PageSpec> collected;
  std::map<Wishes, size_t> open;
  for (Candidate& group : groups) {
    if (!group.may_be_collected || numel_of(group.spec) >= min_numel) {
      collected.push_back(std::move(group.spec));
      continue;
    }
    const auto wishes = wishes_of(group.spec);
    const auto found = open.find(wishes);
    if (found == open.end()) {
      open.emplace(wishes, collected.size());
      collected.push_back(std::move(group.spec));
      continue;
    }
    PageSpec& target = collected[found->second];
    append(target, std::move(group.spec));
    target.scattered = true;
    if (numel_of(target) >= min_numel) {
      open.erase(found);
    }
  }
  return collected;
}

/// The parameters of a group are of one kind.
struct GroupKind {
  at::ScalarType dtype;
  bool trainable;
  bool of_experts;
  bool full_precision;
  FrozenWeights frozen_weights;

  auto operator<=>(const GroupKind&) const = default;

  std::string text() const {
    return std::string("[") + c10::toString(dtype) +
           (of_experts ? ", experts" : "") +
           (full_precision ? ", full precision" : "") +
           (frozen_weights != FrozenWeights::kNone
                ? ", " + name_of(frozen_weights)
                : "") +
           (trainable ? "]" : ", frozen]");
  }
};

/// Combines small parts of blocks, e.g. float32 norms, into groups that span
/// several blocks, instead of one group per block.
class SmallParts {
 public:
  SmallParts(int64_t min_numel, std::vector<PageSpec>& out)
      : min_numel_(min_numel), out_(out) {}

  /// @return false when the part is large enough to be a group of its own.
  bool add(GroupKind kind, const PageSpec& part) {
    if (numel_of(part) >= min_numel_) {
      return false;
    }
    const auto [found, is_new] =
        open_.emplace(std::pair(kind, wishes_of(part)), out_.size());
    if (is_new) {
      out_.push_back(part);
      return true;
    }
    PageSpec& group = out_[found->second];
    group.parameters.insert(
        group.parameters.end(), part.parameters.begin(), part.parameters.end());
    group.blocks.insert(
        group.blocks.end(), part.blocks.begin(), part.blocks.end());
    group.scattered = true;
    if (numel_of(group) >= min_numel_) {
      open_.erase(found);
    }
    return true;
  }

 private:
  int64_t min_numel_;
  std::vector<PageSpec>& out_;
  std::map<std::pair<GroupKind, Wishes>, size_t> open_; ///< accept more parts
};

/// Makes one group per kind.
void split_by_kind(
    const PageSpec& group,
    const ModuleChoices& choices,
    SmallParts& small,
    std::vector<PageSpec>& out) {
  // A storage is one unit: it is trainable when any of its parameters is.
  std::unordered_set<const c10::StorageImpl*> trainable;
  std::unordered_set<const c10::StorageImpl*> of_experts;
  std::unordered_set<const c10::StorageImpl*> full_precision;
  for (const PagedParameter& parameter : group.parameters) {
    const ParameterRecord& record = parameter.record;
    if (record.tensor.requires_grad()) {
      trainable.insert(storage_of(record));
    }
    if (record.of_experts) {
      of_experts.insert(storage_of(record));
    }
    const auto& names = record.spec.names;
    if (std::any_of(names.begin(), names.end(), [&](const auto& name) {
          return choices.is_sent_exactly(name);
        })) {
      full_precision.insert(storage_of(record));
    }
  }
  std::vector<std::pair<GroupKind, PageSpec>> kinds;
  for (const PagedParameter& parameter : group.parameters) {
    const ParameterRecord& record = parameter.record;
    const GroupKind kind{
        record.dtype,
        trainable.contains(storage_of(record)),
        of_experts.contains(storage_of(record)),
        full_precision.contains(storage_of(record)),
        record.frozen_weights};
    auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) {
      return k.first == kind;
    });
    if (found == kinds.end()) {
      PageSpec part = group;
      part.parameters.clear();
      part.of_experts = kind.of_experts;
      part.full_precision = kind.full_precision;
      part.resting_format = format_of(kind.frozen_weights);
      kinds.emplace_back(kind, std::move(part));
      found = std::prev(kinds.end());
    }
    found->second.parameters.push_back(parameter);
  }
  for (auto& [kind, part] : kinds) {
    if (kinds.size() > 1) {
      part.name += kind.text();
      if (small.add(kind, part)) {
        continue;
      }
    }
    out.push_back(std::move(part));
  }
}

} // namespace

std::vector<PageSpec> group_parameters(
    const Module& module,
    const std::vector<ParameterRecord>& parameters,
    const GroupPolicy& policy,
    const ModuleChoices& choices,
    const std::set<std::string>& apart) {
  check_group_policy(policy);
  RecordOf records;
  for (const auto& record : parameters) {
    records.emplace(record.tensor.unsafeGetTensorImpl(), record);
  }
  auto groups = candidates_of(
      find_units(module, policy, choices), records, choices, apart);
  apply_choices(choices, groups);
  if (policy.max_group_numel > 0) {
    groups = merge_neighbours(std::move(groups), policy.max_group_numel);
  }
  std::vector<PageSpec> result;
  SmallParts small(policy.min_group_numel, result);
  int block = 0;
  for (auto& group : collect_small(std::move(groups), policy.min_group_numel)) {
    group.blocks = {block++};
    split_by_kind(group, choices, small, result);
  }
  return result;
}

} // namespace tessera::sharding
