// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/grouping.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/residency_hints.h"

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <typeindex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tessera {

namespace {

using torch::nn::Module;

bool is_container(const Module& module) {
  return dynamic_cast<const torch::nn::SequentialImpl*>(&module) ||
         dynamic_cast<const torch::nn::ModuleListImpl*>(&module) ||
         dynamic_cast<const torch::nn::ModuleDictImpl*>(&module);
}

bool has_parameters(const Module& module) {
  return !module.parameters(/*recurse=*/true).empty();
}

/// A module made of modules, not a mere list of them: what a block looks like.
bool is_composite(const Module& module) {
  return !module.children().empty() && !is_container(module) &&
         has_parameters(module);
}

const ResidencyHints* hints_of(const Module& module) {
  return dynamic_cast<const ResidencyHints*>(&module);
}

/// The children that are blocks.
std::set<const Module*> blocks_among_children(const Module& module) {
  std::map<std::type_index, std::vector<const Module*>> by_type;
  std::set<const Module*> blocks;
  for (const auto& child : module.children()) {
    if (hints_of(*child) != nullptr) {
      blocks.insert(child.get());
    } else if (is_composite(*child)) {
      const Module& reference = *child;
      by_type[typeid(reference)].push_back(child.get());
    }
  }
  for (const auto& [type, members] : by_type) {
    if (members.size() > 1 || is_container(module)) {
      blocks.insert(members.begin(), members.end());
    }
  }
  return blocks;
}

bool contains_blocks(const Module& module) {
  if (!blocks_among_children(module).empty()) {
    return true;
  }
  const auto children = module.children();
  return std::any_of(children.begin(), children.end(), [](const auto& child) {
    return contains_blocks(*child);
  });
}

/// A piece of the model before merging.
struct Piece {
  std::string name;
  std::vector<const c10::TensorImpl*> parameters;
  std::optional<int> zero_stage;
};

std::string join(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

std::optional<int> zero_stage_of(
    const Module& module,
    const std::string& path) {
  const ResidencyHints* hints = hints_of(module);
  if (hints == nullptr || !hints->zero_stage) {
    return std::nullopt;
  }
  TESSERA_CHECK(
      *hints->zero_stage >= 1 && *hints->zero_stage <= 3,
      "module '",
      path,
      "' asks for zero_stage ",
      *hints->zero_stage,
      "; it must be 1, 2 or 3.");
  return hints->zero_stage;
}

void add_piece(
    const Module& module,
    const std::string& path,
    bool recurse,
    std::vector<Piece>& pieces) {
  Piece piece{path, {}, zero_stage_of(module, path)};
  for (const auto& tensor : module.parameters(recurse)) {
    piece.parameters.push_back(tensor.unsafeGetTensorImpl());
  }
  if (!piece.parameters.empty()) {
    pieces.push_back(std::move(piece));
  }
}

void collect_pieces(
    const Module& module,
    const std::string& path,
    std::vector<Piece>& pieces) {
  add_piece(module, path, /*recurse=*/false, pieces);
  const auto blocks = blocks_among_children(module);
  for (const auto& child : module.named_children()) {
    const std::string child_path = join(path, child.key());
    const Module& child_module = *child.value();
    const bool transparent =
        !blocks.count(&child_module) &&
        (is_container(child_module) || contains_blocks(child_module));
    if (transparent) {
      collect_pieces(child_module, child_path, pieces);
    } else {
      add_piece(child_module, child_path, /*recurse=*/true, pieces);
    }
  }
}

int64_t numel_of(const GroupSpec& group) {
  int64_t numel = 0;
  for (const auto& record : group.parameters) {
    numel += record.tensor.numel();
  }
  return numel;
}

/// Storages used from more than one piece leave their pieces.
class SharedStorages {
 public:
  SharedStorages(
      const std::vector<Piece>& pieces,
      const std::unordered_map<const c10::TensorImpl*, ParameterRecord>& all) {
    std::unordered_map<const c10::StorageImpl*, size_t> first_piece;
    for (size_t i = 0; i < pieces.size(); ++i) {
      for (const auto* impl : pieces[i].parameters) {
        const auto* storage =
            all.at(impl).tensor.storage().unsafeGetStorageImpl();
        const auto [found, is_new] = first_piece.emplace(storage, i);
        if (!is_new && found->second != i) {
          shared_.insert(storage);
        }
      }
    }
  }

  bool contains(const at::Tensor& tensor) const {
    return shared_.count(tensor.storage().unsafeGetStorageImpl()) > 0;
  }

 private:
  std::unordered_set<const c10::StorageImpl*> shared_;
};

/// Collects small groups, in order, until a collection reaches the minimum.
std::vector<GroupSpec> merge_small(
    std::vector<GroupSpec> groups,
    int64_t min_numel) {
  std::vector<GroupSpec> merged;
  std::optional<size_t> open;
  for (auto& group : groups) {
    if (numel_of(group) >= min_numel) {
      merged.push_back(std::move(group));
      continue;
    }
    if (!open || merged[*open].zero_stage != group.zero_stage) {
      open = merged.size();
      merged.push_back(std::move(group));
      continue;
    }
    GroupSpec& target = merged[*open];
    target.name += "+" + group.name;
    target.scattered = true;
    std::move(
        group.parameters.begin(),
        group.parameters.end(),
        std::back_inserter(target.parameters));
    if (numel_of(target) >= min_numel) {
      open.reset();
    }
  }
  return merged;
}

using GroupKind = std::pair<at::ScalarType, bool>;

/// Gathers what the blocks have a little of, e.g. float32 norms: a group for
/// several blocks' share in place of one for each.
class SmallParts {
 public:
  SmallParts(int64_t min_numel, std::vector<GroupSpec>& out)
      : min_numel_(min_numel), out_(out) {}

  /// @return false when the part is large enough to stay alone.
  bool add(GroupKind kind, const GroupSpec& part) {
    if (numel_of(part) >= min_numel_) {
      return false;
    }
    const auto [found, is_new] = open_.emplace(kind, out_.size());
    if (is_new) {
      out_.push_back(part);
      return true;
    }
    GroupSpec& group = out_[found->second];
    group.parameters.insert(
        group.parameters.end(), part.parameters.begin(), part.parameters.end());
    group.scattered = true;
    if (numel_of(group) >= min_numel_) {
      open_.erase(found);
    }
    return true;
  }

 private:
  int64_t min_numel_;
  std::vector<GroupSpec>& out_;
  std::map<GroupKind, size_t> open_; ///< groups that take more, by kind
};

/// One group per (dtype, requires_grad); the trainable part keeps the name.
void split_by_kind(
    const GroupSpec& group,
    SmallParts& small,
    std::vector<GroupSpec>& out) {
  // A storage is one unit: it is trainable when any of its parameters is.
  std::unordered_set<const c10::StorageImpl*> trainable;
  for (const auto& record : group.parameters) {
    if (record.tensor.requires_grad()) {
      trainable.insert(record.tensor.storage().unsafeGetStorageImpl());
    }
  }
  std::vector<std::pair<GroupKind, GroupSpec>> kinds;
  for (const auto& record : group.parameters) {
    const GroupKind kind(
        record.dtype,
        trainable.count(record.tensor.storage().unsafeGetStorageImpl()) > 0);
    auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) {
      return k.first == kind;
    });
    if (found == kinds.end()) {
      kinds.emplace_back(
          kind, GroupSpec{group.name, {}, group.scattered, group.zero_stage});
      found = std::prev(kinds.end());
    }
    found->second.parameters.push_back(record);
  }
  for (auto& [kind, part] : kinds) {
    if (kinds.size() > 1) {
      part.name += std::string("[") + c10::toString(kind.first) +
                   (kind.second ? "]" : ", frozen]");
      if (small.add(kind, part)) {
        continue;
      }
    }
    out.push_back(std::move(part));
  }
}

} // namespace

std::vector<GroupSpec> make_groups(
    const Module& module,
    const std::vector<ParameterRecord>& parameters,
    const GroupPolicy& policy) {
  std::unordered_map<const c10::TensorImpl*, ParameterRecord> all;
  for (const auto& record : parameters) {
    all.emplace(record.tensor.unsafeGetTensorImpl(), record);
  }
  std::vector<Piece> pieces;
  collect_pieces(module, "", pieces);
  const SharedStorages shared(pieces, all);

  std::vector<GroupSpec> groups;
  std::unordered_map<const c10::StorageImpl*, size_t> shared_group;
  std::unordered_set<const c10::TensorImpl*> placed;
  std::vector<GroupSpec> shared_groups;
  for (const auto& piece : pieces) {
    GroupSpec group{
        piece.name.empty() ? "root" : piece.name, {}, false, piece.zero_stage};
    for (const auto* impl : piece.parameters) {
      if (!placed.insert(impl).second) {
        continue;
      }
      const ParameterRecord& record = all.at(impl);
      if (!shared.contains(record.tensor)) {
        group.parameters.push_back(record);
        continue;
      }
      const auto* storage = record.tensor.storage().unsafeGetStorageImpl();
      const auto [found, is_new] =
          shared_group.emplace(storage, shared_groups.size());
      if (is_new) {
        shared_groups.push_back({record.name(), {}, true});
      }
      shared_groups[found->second].parameters.push_back(record);
    }
    if (!group.parameters.empty()) {
      groups.push_back(std::move(group));
    }
  }
  // Tied weights are used early and late; they come first, as embeddings do.
  groups.insert(
      groups.begin(),
      std::make_move_iterator(shared_groups.begin()),
      std::make_move_iterator(shared_groups.end()));

  std::vector<GroupSpec> result;
  SmallParts small(policy.min_group_numel, result);
  for (const auto& group :
       merge_small(std::move(groups), policy.min_group_numel)) {
    split_by_kind(group, small, result);
  }
  return result;
}

} // namespace tessera
