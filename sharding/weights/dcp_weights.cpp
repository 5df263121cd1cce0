// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weights/torch_checkpoint.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/safetensors_header.h"
#include "tessera/runtime/io/torch_file.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tessera::sharding {

namespace {

namespace fs = std::filesystem;
using runtime::PickleKind;
using runtime::PickleNode;

constexpr const char* kMetadataFile = ".metadata";

/// Where a piece of a tensor is.
struct StoredChunk {
  std::string file;
  int64_t offset = 0;
  int64_t bytes = 0;
};

/// Reads the description of a checkpoint; errors name it.
class DcpReader {
 public:
  explicit DcpReader(const fs::path& folder)
      : folder_(folder),
        path_(folder / kMetadataFile),
        file_(path_, "description of a checkpoint"),
        pickle_(file_.bytes(), path_.string(), runtime::is_tensor_global) {}

  WeightSet read() {
    index_chunks();
    const PickleNode& tensors =
        attribute(pickle_.root(), "state_dict_metadata");
    find_roots(tensors);
    for (size_t i = 0; i + 1 < tensors.items.size(); i += 2) {
      const PickleNode& tensor = *tensors.items[i + 1];
      const std::string key = text(*tensors.items[i]);
      const std::string name = weight_name(key);
      if (tensor.made_by() ==
              "torch.distributed.checkpoint.metadata.TensorStorageMetadata" &&
          !name.empty()) {
        set_.entries.emplace(name, entry_of(key, name, tensor));
      }
    }
    TESSERA_CHECK(
        !set_.entries.empty(), "{}: the checkpoint has no tensors", path_);
    for (auto& [name, file] : files_) {
      set_.files.push_back(std::move(file));
    }
    return std::move(set_);
  }

 private:
  using Index = std::pair<std::string, std::vector<int64_t>>;

  [[noreturn]] void fail(const std::string& label) const {
    TESSERA_FAIL(
        "{}: {}; the checkpoint is damaged, or of another version of PyTorch: save it again, or convert it with torch.distributed.checkpoint.format_utils.dcp_to_torch_save",
        path_,
        label);
  }
  const PickleNode& attribute(const PickleNode& node, const char* name) const {
    const PickleNode* found = node.attribute(name);
    if (found == nullptr) {
      fail(formatted("{} has no '{}'", show(node), name));
    }
    return *found;
  }
  const std::string& text(const PickleNode& node) const {
    if (!node.is(PickleKind::kString)) {
      fail(show(node) + " is not a name");
    }
    return node.text;
  }
  int64_t number(const PickleNode& node) const {
    if (!node.is(PickleKind::kInt) || node.integer < 0) {
      fail(show(node) + " is not a size");
    }
    return node.integer;
  }
  /// Of a torch.Size.
  std::vector<int64_t> sizes(const PickleNode& node) const {
    const PickleNode* tuple = &node;
    if (node.made_by() == "torch.Size" && node.arguments->items.size() == 1) {
      tuple = node.arguments->items.front();
    }
    if (!tuple->is(PickleKind::kTuple)) {
      fail(show(node) + " is not a torch.Size");
    }
    std::vector<int64_t> values;
    for (const PickleNode* value : tuple->items) {
      values.push_back(number(*value));
    }
    return values;
  }

  void index_chunks() {
    const PickleNode& stored = attribute(pickle_.root(), "storage_data");
    for (size_t i = 0; i + 1 < stored.items.size(); i += 2) {
      const PickleNode& index = *stored.items[i];
      const PickleNode& stored_at = *stored.items[i + 1];
      const PickleNode* offset = index.attribute("offset"); // None: absent
      StoredChunk chunk{
          text(attribute(stored_at, "relative_path")),
          number(attribute(stored_at, "offset")),
          number(attribute(stored_at, "length"))};
      if (const PickleNode* changed =
              stored_at.attribute("transform_descriptors");
          changed != nullptr && !changed->is(PickleKind::kNone)) {
        fail("its files are compressed, which is not supported");
      }
      chunks_.emplace(
          Index{
              text(attribute(index, "fqn")),
              offset == nullptr || offset->is(PickleKind::kNone)
                  ? std::vector<int64_t>()
                  : sizes(*offset)},
          std::move(chunk));
    }
  }

  /// The keys to a tensor in what was saved, e.g. ("model", "head.weight").
  std::vector<std::string> path_of(const std::string& key) const {
    const PickleNode* paths = pickle_.root().attribute("planner_data");
    const PickleNode* path = paths == nullptr ? nullptr : paths->find(key);
    if (path == nullptr || !path->is(PickleKind::kTuple)) {
      return {key};
    }
    std::vector<std::string> keys;
    for (const PickleNode* part : path->items) {
      keys.push_back(
          part->is(PickleKind::kString) ? part->text
                                        : std::to_string(part->integer));
    }
    return keys;
  }

  /// Finds the keys below which the weights are.
  void find_roots(const PickleNode& tensors) {
    static const std::set<std::string> kRoots = {
        "app", "model", "state_dict", "model_state_dict", "module"};
    for (;;) {
      std::string next;
      for (size_t i = 0; i < tensors.items.size(); i += 2) {
        const auto keys = path_of(text(*tensors.items[i]));
        if (keys.size() > roots_.size() + 1 &&
            std::equal(roots_.begin(), roots_.end(), keys.begin()) &&
            kRoots.contains(keys[roots_.size()])) {
          next = keys[roots_.size()];
          break;
        }
      }
      if (next.empty()) {
        return;
      }
      roots_.push_back(next);
    }
  }

  /// Empty if the tensor is no weight.
  std::string weight_name(const std::string& key) const {
    const auto keys = path_of(key);
    if (keys.size() <= roots_.size() ||
        !std::equal(roots_.begin(), roots_.end(), keys.begin())) {
      return "";
    }
    std::string name;
    for (size_t i = roots_.size(); i < keys.size(); ++i) {
      name += (name.empty() ? "" : ".") + keys[i];
    }
    return name;
  }

  WeightEntry entry_of(
      const std::string& key,
      const std::string& name,
      const PickleNode& tensor) {
    const PickleNode& properties = attribute(tensor, "properties");
    const PickleNode* state = properties.state;
    const PickleNode* dtype = state != nullptr &&
                                      state->is(PickleKind::kTuple) &&
                                      !state->items.empty()
                                  ? state->items.front()
                                  : properties.attribute("dtype");
    const auto known =
        dtype == nullptr ? std::nullopt : runtime::dtype_of_global(dtype->text);
    if (!known) {
      fail(formatted("'{}' has no known dtype", key));
    }
    WeightEntry entry{name, *known, sizes(attribute(tensor, "size")), {}};
    if (!runtime::detail::safetensors_bytes(entry.dtype, entry.shape)) {
      fail(formatted("'{}' is larger than any tensor", key));
    }
    int64_t numel = 0;
    for (const PickleNode* chunk : attribute(tensor, "chunks").items) {
      const auto begin = sizes(attribute(*chunk, "offsets"));
      const auto shape = sizes(attribute(*chunk, "sizes"));
      numel += add_chunk(key, begin, shape, entry);
    }
    if (numel != sharding::numel_of(entry.shape, {})) {
      fail(formatted(
          "of '{}', which has {} elements, {} are in its pieces",
          key,
          sharding::numel_of(entry.shape, {}),
          numel));
    }
    return entry;
  }

  /// @return the number of its elements.
  int64_t add_chunk(
      const std::string& key,
      const std::vector<int64_t>& begin,
      const std::vector<int64_t>& shape,
      WeightEntry& entry) {
    bool is_inside =
        begin.size() == shape.size() && shape.size() == entry.shape.size();
    for (size_t d = 0; is_inside && d < shape.size(); ++d) {
      is_inside =
          begin[d] <= entry.shape[d] && shape[d] <= entry.shape[d] - begin[d];
    }
    if (!is_inside) {
      fail(formatted("a piece of '{}' is outside of the tensor", key));
    }
    if (sharding::numel_of(shape, {}) == 0) {
      return 0;
    }
    auto found = chunks_.find({key, begin});
    if (found == chunks_.end()) {
      found = chunks_.find({key, {}}); // a replicated tensor has no offset
    }
    if (found == chunks_.end()) {
      fail(formatted("a piece of '{}' is in no file", key));
    }
    const runtime::TorchTensor stored = tensor_in(key, found->second);
    if (stored.dtype != entry.dtype || stored.shape != shape) {
      fail(formatted(
          "a piece of '{}' has the sizes {} ({}) in {}, but {} are expected",
          key,
          at::IntArrayRef(stored.shape),
          name_of(stored.dtype),
          found->second.file,
          at::IntArrayRef(shape)));
    }
    entry.regions.push_back(
        {{begin, shape, {stored.offset, stored.strides}}, stored.storage});
    return sharding::numel_of(shape, {});
  }

  /// The tensor that was saved alone in a part of a file.
  runtime::TorchTensor tensor_in(
      const std::string& key,
      const StoredChunk& chunk) {
    const fs::path path = folder_ / chunk.file;
    auto& mapped = files_[chunk.file];
    if (mapped == nullptr) {
      if (fs::path(chunk.file).filename() != chunk.file) {
        fail("'" + chunk.file + "' is not the name of a file in the folder");
      }
      mapped = std::make_shared<const runtime::MappedFile>(
          path, "part of a checkpoint");
    }
    const auto bytes = mapped->bytes();
    TESSERA_CHECK(
        chunk.offset <= static_cast<int64_t>(bytes.size()) &&
            chunk.bytes <= static_cast<int64_t>(bytes.size()) - chunk.offset,
        "{} has {} bytes, but '{}' would be at [{}, {}); the file is damaged or was not written completely: fetch it again",
        path,
        bytes.size(),
        key,
        chunk.offset,
        chunk.offset + chunk.bytes);
    const auto file = runtime::TorchFile::in(
        bytes.subspan(
            static_cast<size_t>(chunk.offset),
            static_cast<size_t>(chunk.bytes)),
        path.string() + ", '" + key + "'");
    return file.tensor(file.root(), key);
  }

  fs::path folder_;
  fs::path path_;
  runtime::MappedFile file_;
  runtime::Pickle pickle_;
  std::vector<std::string> roots_;
  std::map<Index, StoredChunk> chunks_;
  std::map<std::string, std::shared_ptr<const runtime::MappedFile>> files_;
  WeightSet set_;
};

} // namespace

bool is_dcp(const fs::path& folder) {
  return fs::exists(folder / kMetadataFile);
}

WeightSet dcp_weights(const fs::path& folder) {
  return DcpReader(folder).read();
}

} // namespace tessera::sharding
