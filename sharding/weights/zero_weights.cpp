// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weights/torch_checkpoint.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/safetensors_header.h"
#include "tessera/runtime/io/torch_file.h"
#include "tessera/sharding/weights/file_regions.h"
#include "tessera/sharding/weights/torch_weights.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace tessera::sharding {

namespace {

namespace fs = std::filesystem;
using runtime::PickleKind;
using runtime::PickleNode;
using runtime::TorchFile;

constexpr std::string_view kOptimizerFile = "_optim_states.pt";
constexpr std::string_view kModelFile = "_model_states.pt";

/// The number behind "rank_" in a file's name.
int64_t number_behind(const std::string& name, std::string_view label) {
  const size_t at = name.find(label);
  int64_t number = 0;
  for (size_t i = at == std::string::npos ? name.size() : at + label.size();
       i < name.size() && name[i] >= '0' && name[i] <= '9' && number < 1 << 20;
       ++i) {
    number = 10 * number + (name[i] - '0');
  }
  return number;
}

/// The files with an end, by data-parallel rank.
/// @throws tessera::Error if there are some of several tensor-parallel ranks.
std::map<int64_t, fs::path> rank_files(
    const fs::path& folder,
    std::string_view end) {
  std::map<int64_t, fs::path> files;
  for (const auto& item : fs::directory_iterator(folder)) {
    const std::string name = item.path().filename();
    if (!name.ends_with(end) || name.find("mp_rank_") == std::string::npos) {
      continue;
    }
    TESSERA_CHECK(
        number_behind(name, "mp_rank_") == 0,
        "{}: the layers were divided by tensor parallelism, which is not supported; convert the checkpoint with DeepSpeed's ds_to_universal.py first",
        item.path());
    files.emplace(number_behind(name, "zero_pp_rank_"), item.path());
  }
  return files;
}

/// An open file of a rank.
class RankFile {
 public:
  explicit RankFile(const fs::path& path)
      : path_(path),
        file_(std::make_shared<const TorchFile>(TorchFile::open(path))) {}

  [[noreturn]] void fail(const std::string& label) const {
    TESSERA_FAIL(
        "{}: {}; give a checkpoint that DeepSpeed wrote with ZeRO, or consolidate it with its zero_to_fp32.py",
        path_,
        label);
  }
  /// Null if it is absent, or None.
  const PickleNode* find(const PickleNode& in, const char* key) const {
    const PickleNode* found = in.find(key);
    return found == nullptr || found->is(PickleKind::kNone) ? nullptr : found;
  }
  const PickleNode& get(const PickleNode& in, const char* key) const {
    const PickleNode* found = find(in, key);
    if (found == nullptr) {
      fail(formatted("there is no '{}'", key));
    }
    return *found;
  }
  const PickleNode& root() const {
    return file_->root();
  }
  const std::shared_ptr<const TorchFile>& file() const {
    return file_;
  }
  WeightEntry tensor(const PickleNode& node, const std::string& name) const {
    return torch_entry(name, file_->tensor(node, name));
  }
  const std::string& text(const PickleNode& node) const {
    if (!node.is(PickleKind::kString)) {
      fail(show(node) + " is not a name");
    }
    return node.text;
  }
  int64_t number(const PickleNode& node, const char* label) const {
    if (!node.is(PickleKind::kInt) || node.integer < 0) {
      fail(formatted("the {} is {}", label, show(node)));
    }
    return node.integer;
  }
  /// Of a torch.Size or tuple.
  std::vector<int64_t> shape(const PickleNode& node) const {
    const PickleNode* tuple = &node;
    if (node.made_by() == "torch.Size" && node.arguments->items.size() == 1) {
      tuple = node.arguments->items.front();
    }
    std::vector<int64_t> sizes;
    for (const PickleNode* size : tuple->items) {
      sizes.push_back(number(*size, "size of a weight"));
    }
    if (!runtime::detail::safetensors_bytes(
            runtime::SafetensorsDtype::kF64, sizes)) {
      fail("a weight is larger than any tensor");
    }
    return sizes;
  }

 private:
  fs::path path_;
  std::shared_ptr<const TorchFile> file_;
};

/// Joins what the ranks have.
class ZeroReader {
 public:
  explicit ZeroReader(const fs::path& folder) {
    for (const auto& [rank, path] : rank_files(folder, kModelFile)) {
      models_.emplace_back(path);
    }
    for (const auto& [rank, path] : rank_files(folder, kOptimizerFile)) {
      optimizers_.emplace_back(path);
    }
    TESSERA_CHECK(
        !models_.empty() && !optimizers_.empty(),
        "{} lacks the files '...{}' or '...{}' of a DeepSpeed checkpoint with ZeRO",
        folder,
        kModelFile,
        kOptimizerFile);
  }

  WeightSet read() {
    const RankFile& first = optimizers_.front();
    const PickleNode& state = first.get(first.root(), "optimizer_state_dict");
    const int64_t zero_stage =
        first.number(first.get(state, "zero_stage"), "'zero_stage' of ZeRO");
    check_ranks(first.get(state, "partition_count"));
    if (zero_stage == 3) {
      add_of_stage_3();
    } else if (zero_stage <= 2) {
      add_of_stages_1_and_2(find_padding(state));
    } else {
      first.fail(formatted("the stage of ZeRO is {}", zero_stage));
    }
    add_buffers();
    add_shared();
    for (const auto* files : {&models_, &optimizers_}) {
      for (const RankFile& file : *files) {
        set_.files.push_back(file.file());
      }
    }
    return std::move(set_);
  }

 private:
  using Flat = std::vector<WeightEntry>;

  void check_ranks(const PickleNode& count) {
    const RankFile& first = optimizers_.front();
    int64_t ranks = 0;
    if (count.is(PickleKind::kInt)) {
      ranks = count.integer;
    }
    for (const PickleNode* one : count.items) { // one for each group
      ranks = std::max(ranks, first.number(*one, "number of ranks"));
    }
    if (ranks != static_cast<int64_t>(optimizers_.size())) {
      first.fail(formatted(
          "the checkpoint is of {} ranks, but there are files '...{}' of {}",
          ranks,
          kOptimizerFile,
          optimizers_.size()));
    }
  }

  const PickleNode& optimizer(const RankFile& file) const {
    return file.get(file.root(), "optimizer_state_dict");
  }

  /// One flat tensor for each group; a rank of stage 3 may have it in parts.
  std::vector<Flat> groups_of(const RankFile& file, const char* key) const {
    std::vector<Flat> groups;
    for (const PickleNode* group : file.get(optimizer(file), key).items) {
      Flat parts;
      if (TorchFile::is_tensor(*group)) {
        parts.push_back(file.tensor(*group, key));
      }
      for (const PickleNode* part : group->items) {
        parts.push_back(file.tensor(*part, key));
      }
      groups.push_back(std::move(parts));
    }
    return groups;
  }

  void add(WeightEntry entry, const RankFile& file) {
    const std::string name = entry.name;
    if (!set_.entries.emplace(name, std::move(entry)).second) {
      file.fail("'" + name + "' is there twice");
    }
  }

  const PickleNode* find_padding(const PickleNode& state) const {
    return optimizers_.front().find(state, "param_alignment_paddings");
  }

  /// Each rank has a stretch of the flat tensor of a group, in which weights
  /// follow each other.
  void add_of_stages_1_and_2(const PickleNode* paddings) {
    std::vector<std::vector<Flat>> ranks;
    for (const RankFile& file : optimizers_) {
      ranks.push_back(groups_of(file, "single_partition_of_fp32_groups"));
    }
    const RankFile& model = models_.front();
    const auto& groups = model.get(model.root(), "param_shapes").items;
    for (size_t g = 0; g < groups.size(); ++g) {
      Flat full;
      for (const auto& rank : ranks) {
        if (g >= rank.size()) {
          model.fail(formatted("group {} of the weights has no values", g));
        }
        full.insert(full.end(), rank[g].begin(), rank[g].end());
      }
      int64_t offset = 0;
      for (size_t i = 0; i + 1 < groups[g]->items.size(); i += 2) {
        const std::string& name = model.text(*groups[g]->items[i]);
        const auto shape = model.shape(*groups[g]->items[i + 1]);
        const int64_t numel = sharding::numel_of(shape, {});
        add(unflattened(name, shape, stretches(full, offset, numel)), model);
        offset += numel + padding(paddings, g, i / 2);
      }
    }
    const PickleNode* frozen =
        model.find(model.root(), "frozen_param_fragments");
    for (size_t i = 0; frozen != nullptr && i + 1 < frozen->items.size();
         i += 2) {
      const std::string& name = model.text(*frozen->items[i]);
      add(model.tensor(*frozen->items[i + 1], name), model);
    }
  }

  /// Unused elements behind a weight.
  int64_t padding(const PickleNode* paddings, size_t group, size_t i) const {
    if (paddings == nullptr) {
      return 0;
    }
    const RankFile& first = optimizers_.front();
    if (group >= paddings->items.size() ||
        i >= paddings->items[group]->items.size()) {
      first.fail("'param_alignment_paddings' is not one for each weight");
    }
    return first.number(*paddings->items[group]->items[i], "padding");
  }

  /// Elements of flat tensors that follow each other.
  static std::vector<WeightStretch> stretches(
      const Flat& flats,
      int64_t offset,
      int64_t numel) {
    std::vector<WeightStretch> found;
    for (const WeightEntry& flat : flats) {
      const int64_t size = flat.shape.size() == 1 ? flat.shape[0] : 0;
      const int64_t count = std::min(size - offset, numel);
      if (count > 0) {
        found.push_back({&flat, offset, count});
        numel -= count;
      }
      offset = std::max<int64_t>(offset - size, 0);
    }
    return found;
  }

  /// Each rank has a stretch of each weight; all stretches are equally long,
  /// the last ones padded.
  void add_of_stage_3() {
    const auto count = static_cast<int64_t>(optimizers_.size());
    std::vector<Flat> ranks;
    for (const RankFile& file : optimizers_) {
      Flat all;
      for (Flat& group : groups_of(file, "fp32_flat_groups")) {
        std::move(group.begin(), group.end(), std::back_inserter(all));
      }
      ranks.push_back(std::move(all));
    }
    const RankFile& model = models_.front();
    int64_t offset = 0;
    for (const PickleNode* group :
         model.get(model.root(), "param_shapes").items) {
      for (size_t i = 0; i + 1 < group->items.size(); i += 2) {
        const std::string& name = model.text(*group->items[i]);
        const auto shape = model.shape(*group->items[i + 1]);
        const int64_t numel = sharding::numel_of(shape, {});
        const int64_t each = numel / count + (numel % count != 0 ? 1 : 0);
        std::vector<WeightStretch> parts;
        for (int64_t r = 0; r < count; ++r) {
          const int64_t local = std::clamp<int64_t>(numel - r * each, 0, each);
          for (const WeightStretch& part :
               stretches(ranks[static_cast<size_t>(r)], offset, local)) {
            parts.push_back(part);
          }
        }
        add(unflattened(name, shape, parts), model);
        offset += each;
      }
    }
    add_frozen_of_stage_3();
  }

  void add_frozen_of_stage_3() {
    const RankFile& model = models_.front();
    const PickleNode* shapes = model.find(model.root(), "frozen_param_shapes");
    for (size_t i = 0; shapes != nullptr && i + 1 < shapes->items.size();
         i += 2) {
      const std::string& name = model.text(*shapes->items[i]);
      const auto shape = model.shape(*shapes->items[i + 1]);
      Flat fragments;
      for (const RankFile& file : models_) {
        const PickleNode& all = file.get(file.root(), "frozen_param_fragments");
        fragments.push_back(file.tensor(file.get(all, name.c_str()), name));
      }
      add(unflattened(
              name,
              shape,
              stretches(fragments, 0, sharding::numel_of(shape, {}))),
          model);
    }
  }

  void add_buffers() {
    const RankFile& model = models_.front();
    const PickleNode& module = model.get(model.root(), "module");
    const PickleNode* names = model.find(model.root(), "buffer_names");
    if (names == nullptr) {
      return;
    }
    for (const PickleNode* name : names->items) {
      if (const PickleNode* value = module.find(model.text(*name))) {
        add(model.tensor(*value, name->text), model);
      }
    }
  }

  /// Other names of tied weights.
  void add_shared() {
    const RankFile& model = models_.front();
    const PickleNode* shared = model.find(model.root(), "shared_params");
    if (shared == nullptr) {
      return;
    }
    for (size_t i = 0; i + 1 < shared->items.size(); i += 2) {
      const auto source = set_.entries.find(model.text(*shared->items[i + 1]));
      if (source != set_.entries.end()) {
        WeightEntry other = source->second;
        other.name = model.text(*shared->items[i]);
        add(std::move(other), model);
      }
    }
  }

  std::vector<RankFile> models_;
  std::vector<RankFile> optimizers_;
  WeightSet set_;
};

} // namespace

fs::path step_folder(const fs::path& folder) {
  for (const char* name : {"latest", "latest_checkpointed_iteration.txt"}) {
    const fs::path latest = folder / name;
    if (!fs::is_regular_file(latest)) {
      continue;
    }
    std::string tag = runtime::read_text_file(latest);
    while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ')) {
      tag.pop_back();
    }
    constexpr size_t kDigits = 7; // of Megatron's folders
    const std::string padded =
        "iter_" + std::string(kDigits - std::min(kDigits, tag.size()), '0') +
        tag;
    for (const std::string& step : {tag, padded}) {
      if (!tag.empty() && fs::path(step).filename() == step &&
          fs::is_directory(folder / step)) {
        return folder / step;
      }
    }
    TESSERA_FAIL(
        "{} names the checkpoint '{}', which is no folder beside it; give the folder of a checkpoint",
        latest,
        tag.substr(0, 100));
  }
  return folder;
}

bool is_zero(const fs::path& folder) {
  return fs::is_directory(folder) &&
         !rank_files(step_folder(folder), kOptimizerFile).empty();
}

WeightSet zero_weights(const fs::path& folder) {
  return ZeroReader(step_folder(folder)).read();
}

} // namespace tessera::sharding
