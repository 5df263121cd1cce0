// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/torch_file.h"

#include <algorithm>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/byte_reader.h"

namespace tessera::runtime {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";
constexpr std::string_view kTorchRemedy =
    "; the file is damaged, or not one of torch.save: fetch it again, or save the state_dict() again with torch.save";

/// What the files of torch.save begin with before PyTorch 1.6: the pickle of
/// this number.
constexpr std::string_view kLegacyMagic{
    "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
    10};

/// An argument of the function that makes a tensor.
const PickleNode& argument(const PickleNode& made, size_t index) {
  TESSERA_CHECK(
      made.arguments != nullptr && index < made.arguments->items.size(),
      "{} lacks its argument {}",
      show(made),
      index);
  return *made.arguments->items[index];
}

int64_t integer(const PickleNode& node, const char* label) {
  TESSERA_CHECK(
      node.is(PickleKind::kInt) && node.text.empty() && node.integer >= 0,
      "its {} is {}, not a size",
      label,
      show(node));
  return node.integer;
}

/// Of a tuple, or of a torch.Size of one.
std::vector<int64_t> integers(const PickleNode& node, const char* label) {
  const PickleNode& tuple =
      node.made_by() == "torch.Size" ? argument(node, 0) : node;
  TESSERA_CHECK(
      tuple.is(PickleKind::kTuple) || tuple.is(PickleKind::kList),
      "its {} is {}, not a tuple",
      label,
      show(node));
  std::vector<int64_t> values;
  for (const PickleNode* value : tuple.items) {
    values.push_back(integer(*value, label));
  }
  return values;
}

/// The reference to a storage: ('storage', type, key, location, numel).
struct StorageId {
  explicit StorageId(const PickleNode& node) {
    const PickleNode* id = node.is(PickleKind::kPersistent) ? node.of : nullptr;
    TESSERA_CHECK(
        id != nullptr && id->is(PickleKind::kTuple) && id->items.size() >= 5 &&
            id->items[0]->is_string("storage") &&
            id->items[1]->is(PickleKind::kGlobal),
        "its storage is {}",
        show(id == nullptr ? node : *id));
    TESSERA_CHECK(
        id->items.size() < 6 || id->items[5]->is(PickleKind::kNone),
        "its storage is a view of another one, as PyTorch 0.1 wrote it");
    type = id->items[1]->text;
    const PickleNode& name = *id->items[2];
    TESSERA_CHECK(
        name.is(PickleKind::kString) || name.is(PickleKind::kInt),
        "its storage is named by {}",
        show(name));
    key =
        name.is(PickleKind::kString) ? name.text : std::to_string(name.integer);
  }

  std::string type;
  std::string key;
};

SafetensorsDtype dtype_named(const std::string& global) {
  const auto dtype = dtype_of_global(global);
  TESSERA_CHECK(
      dtype.has_value(),
      "it has the type {}, which safetensors does not have; leave it out of the file, or convert it",
      global);
  return *dtype;
}

/// Whether all elements lie in their storage.
bool fits(const TorchTensor& tensor) {
  const auto size = static_cast<int64_t>(size_of(tensor.dtype));
  int64_t last = tensor.offset;
  int64_t numel = 1;
  bool is_empty = false;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const int64_t rows = std::max<int64_t>(tensor.shape[d], 1);
    is_empty = is_empty || tensor.shape[d] == 0;
    int64_t reach = 0;
    if (__builtin_mul_overflow(numel, rows, &numel) ||
        __builtin_mul_overflow(rows - 1, tensor.strides[d], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return false;
    }
  }
  int64_t end = 0;
  return !__builtin_mul_overflow(numel, size, &numel) &&
         !__builtin_add_overflow(last, 1, &end) &&
         !__builtin_mul_overflow(end, size, &end) &&
         (is_empty || end <= static_cast<int64_t>(tensor.storage.size()));
}

/// The calls that wrap another one: the tensor that they are about.
const PickleNode* unwrapped(const PickleNode* node) {
  constexpr int kMostWraps = 8;
  for (int i = 0; i < kMostWraps; ++i) {
    const std::string_view by = node->made_by();
    if (by != "torch._utils._rebuild_parameter" &&
        by != "torch._utils._rebuild_parameter_with_state" &&
        by != "torch.nn.parameter.Parameter") {
      break;
    }
    node = &argument(*node, 0);
  }
  return node;
}

bool makes_tensor(std::string_view global) {
  return global == "torch._utils._rebuild_tensor" ||
         global == "torch._utils._rebuild_tensor_v2" ||
         global == "torch._utils._rebuild_tensor_v3";
}

/// What the metadata of a tensor says of its values that the storage does not:
/// "neg", "conj", or a key of another backend. Empty: nothing.
std::string set_metadata(const PickleNode& metadata) {
  for (size_t i = 0; i + 1 < metadata.items.size(); i += 2) {
    const PickleNode& value = *metadata.items[i + 1];
    const bool is_off = value.is(PickleKind::kNone) ||
                        (value.is(PickleKind::kBool) && value.integer == 0);
    if (!is_off) {
      return metadata.items[i]->text;
    }
  }
  return "";
}

/// The function that makes a tensor, and its arguments.
struct Call {
  explicit Call(const PickleNode& node) : name(node.made_by()) {
    arguments = node.arguments;
    if (name == "torch._tensor._rebuild_from_type_v2") { // (f, type, args, ...)
      name = argument(node, 0).text;
      arguments = &argument(node, 2);
    }
  }
  const PickleNode& operator[](size_t index) const {
    TESSERA_CHECK(
        index < arguments->items.size(), "{} lacks argument {}", name, index);
    return *arguments->items[index];
  }

  /// The last argument; null: there is none.
  const PickleNode* metadata() const {
    const size_t index = name.ends_with("_v3") ? 7 : 6;
    return name.ends_with("_rebuild_tensor") || index >= arguments->items.size()
               ? nullptr
               : arguments->items[index];
  }

  std::string_view name;
  const PickleNode* arguments = nullptr;
};

/// Collects the tensors in nested containers.
class TensorSearch {
 public:
  using Found = std::vector<std::pair<std::string, TorchTensor>>;

  TensorSearch(const TorchFile& file, const std::string& source)
      : file_(file), source_(source) {}

  void search(const PickleNode& node, const std::string& name, int depth) {
    if (TorchFile::is_tensor(node)) {
      found.emplace_back(name, file_.tensor(node, name));
      return;
    }
    const bool is_dict = node.is(PickleKind::kDict);
    if (!is_dict && !node.is(PickleKind::kList) &&
        !node.is(PickleKind::kTuple)) {
      return;
    }
    // Containers may share others, and contain themselves.
    constexpr int kMostDepth = 32;
    constexpr size_t kMostVisits = 20'000'000;
    visits_ += node.items.size();
    TESSERA_CHECK(
        depth < kMostDepth && visits_ < kMostVisits,
        "{}: '{}' has too many dictionaries in each other{}",
        source_,
        name.substr(0, 200),
        kTorchRemedy);
    const std::string prefix = name.empty() ? "" : name + ".";
    const size_t step = is_dict ? 2 : 1;
    for (size_t i = 0; i + step <= node.items.size(); i += step) {
      const PickleNode& key = *node.items[i];
      const std::string last = !is_dict ? std::to_string(i)
                               : key.is(PickleKind::kString)
                                   ? key.text
                                   : std::to_string(key.integer);
      search(*node.items[i + step - 1], prefix + last, depth + 1);
    }
  }

  Found found;

 private:
  const TorchFile& file_;
  const std::string& source_;
  size_t visits_ = 0;
};

} // namespace

TorchFile TorchFile::open(const std::filesystem::path& path) {
  TorchFile file;
  file.source_ = path.string();
  file.file_ = MappedFile(path, "PyTorch file");
  file.read(file.file_.bytes());
  return file;
}

TorchFile TorchFile::in(Bytes bytes, const std::string& source) {
  TorchFile file;
  file.source_ = source;
  file.read(bytes);
  return file;
}

void TorchFile::read(Bytes bytes) {
  is_zip(bytes) ? read_zip(bytes) : read_legacy(bytes);
}

void TorchFile::read_zip(Bytes bytes) {
  constexpr std::string_view kPickle = "/data.pkl";
  zip_.emplace(bytes, source_);
  for (const auto& [name, entry] : zip_->entries()) {
    const size_t slash = name.find('/');
    if (slash != std::string::npos && name.substr(slash) == kPickle) {
      folder_ = name.substr(0, slash + 1);
    }
  }
  TESSERA_CHECK(
      !folder_.empty(),
      "{}: the ZIP archive has no 'data.pkl' in its folder{}",
      source_,
      kTorchRemedy);
  TESSERA_CHECK(
      !zip_->contains(folder_ + "constants.pkl"),
      "{}: this is a module, of torch.jit.save or of torch::save in C++, and not only weights; in Python save its state_dict() with torch.save, in C++ torch::load() it into the module before wrap()",
      source_);
  if (const ZipEntry* order = zip_->find(folder_ + "byteorder")) {
    ByteReader text(order->data, source_);
    TESSERA_CHECK(
        text.text(text.left()) == "little",
        "{}: the tensors are big-endian; save them on a machine with the usual order of bytes",
        source_);
  }
  pickle_ = std::make_unique<const Pickle>(
      zip_->find(folder_ + "data.pkl")->data, source_, is_tensor_global);
}

void TorchFile::read_legacy(Bytes bytes) {
  const auto next = [&](const char* label) {
    try {
      auto pickle =
          std::make_unique<const Pickle>(bytes, source_, is_tensor_global);
      bytes = bytes.subspan(pickle->bytes());
      return pickle;
    } catch (const Error& error) {
      TESSERA_FAIL("{} (reading {})", error.what(), label);
    }
  };
  constexpr size_t kMagicBytes = 2 + 2 + 10;
  ByteReader start(bytes.first(std::min(bytes.size(), kMagicBytes)), source_);
  TESSERA_CHECK(
      start.left() == kMagicBytes &&
          start.text(kMagicBytes).ends_with(kLegacyMagic),
      "{}: this is no file of torch.save: it is neither a ZIP archive nor does it begin with the number of older versions{}",
      source_,
      kTorchRemedy);
  next("the magic number");
  const auto protocol = next("the version");
  constexpr int64_t kProtocol = 1001;
  TESSERA_CHECK(
      protocol->root().integer == kProtocol,
      "{}: the version is {}, but only {} is known{}",
      source_,
      show(protocol->root()),
      kProtocol,
      kTorchRemedy);
  const auto system = next("the system's sizes");
  if (const PickleNode* little = system->root().find("little_endian")) {
    TESSERA_CHECK(
        little->integer != 0,
        "{}: the tensors are big-endian; save them on a machine with the usual order of bytes",
        source_);
  }
  pickle_ = next("the tensors' descriptions");
  std::map<std::string, size_t> element_bytes;
  for (const PickleNode& node : pickle_->nodes()) {
    if (node.is(PickleKind::kPersistent)) {
      try {
        const StorageId id(node);
        const size_t bytes_each =
            id.type == kUntyped ? 1 : size_of(dtype_named(id.type));
        element_bytes.emplace(id.key, bytes_each);
      } catch (const Error& error) {
        TESSERA_FAIL("{}: of a tensor, {}", source_, error.what());
      }
    }
  }
  const auto keys = next("the list of storages");
  ByteReader data(bytes, source_);
  for (const PickleNode* key : keys->root().items) {
    const auto found = element_bytes.find(
        key->is(PickleKind::kString) ? key->text
                                     : std::to_string(key->integer));
    TESSERA_CHECK(
        found != element_bytes.end(),
        "{}: {} is a storage that no tensor has{}",
        source_,
        show(*key),
        kTorchRemedy);
    uint64_t size = data.u64();
    TESSERA_CHECK(
        !__builtin_mul_overflow(size, found->second, &size),
        "{}: the storage '{}' is too large{}",
        source_,
        found->first,
        kTorchRemedy);
    storages_.emplace(found->first, data.take(size));
  }
}

Bytes TorchFile::storage(const std::string& key, const std::string& name)
    const {
  if (zip_) {
    if (const ZipEntry* entry = zip_->find(folder_ + "data/" + key)) {
      return entry->data;
    }
  } else if (const auto found = storages_.find(key); found != storages_.end()) {
    return found->second;
  }
  TESSERA_FAIL(
      "{}: the storage '{}' of tensor '{}' is not in the file{}",
      source_,
      key,
      name,
      kTorchRemedy);
}

bool TorchFile::is_tensor(const PickleNode& node) {
  if (!node.is(PickleKind::kObject)) {
    return false;
  }
  const std::string_view by = node.made_by();
  if (by == "torch._tensor._rebuild_from_type_v2") {
    return node.arguments->items.size() >= 3 &&
           makes_tensor(node.arguments->items[0]->text) &&
           node.arguments->items[2]->is(PickleKind::kTuple);
  }
  return makes_tensor(by) || by == "torch._utils._rebuild_parameter" ||
         by == "torch._utils._rebuild_parameter_with_state" ||
         by == "torch.nn.parameter.Parameter";
}

TorchTensor TorchFile::tensor(const PickleNode& node, const std::string& name)
    const {
  TorchTensor tensor;
  try {
    const PickleNode* inner = unwrapped(&node);
    TESSERA_CHECK(is_tensor(*inner), "it is {}", show(*inner));
    const Call call(*inner);
    TESSERA_CHECK(makes_tensor(call.name), "it is made by {}", call.name);
    if (const PickleNode* metadata = call.metadata()) {
      const std::string flag = set_metadata(*metadata);
      TESSERA_CHECK(
          flag.empty(),
          "it has PyTorch's '{}' bit: its values are not those in the file; save tensor{}.clone() in its place",
          flag,
          flag == "neg"    ? ".resolve_neg()"
          : flag == "conj" ? ".resolve_conj()"
                           : "");
    }
    const StorageId id(call[0]);
    constexpr size_t kDtypeArgument = 6; // of _rebuild_tensor_v3
    tensor.dtype = dtype_named(
        call.name.ends_with("_v3") ? call[kDtypeArgument].text : id.type);
    tensor.offset = integer(call[1], "offset");
    tensor.shape = integers(call[2], "shape");
    tensor.strides = integers(call[3], "strides");
    tensor.storage = storage(id.key, name);
    TESSERA_CHECK(
        tensor.strides.size() == tensor.shape.size(),
        "it has {} sizes, but {} strides",
        tensor.shape.size(),
        tensor.strides.size());
    TESSERA_CHECK(
        fits(tensor),
        "it reaches beyond its storage of {} bytes",
        tensor.storage.size());
  } catch (const Error& error) {
    const std::string label = error.what();
    if (label.starts_with(source_)) {
      throw;
    }
    TESSERA_FAIL(
        "{}: the tensor '{}' cannot be read: {}{}",
        source_,
        name,
        label,
        kTorchRemedy);
  }
  return tensor;
}

std::vector<std::pair<std::string, TorchTensor>> TorchFile::tensors_in(
    const PickleNode& node) const {
  TensorSearch search(*this, source_);
  search.search(node, "", 0);
  return std::move(search.found);
}

std::vector<std::string> TorchFile::damaged_entries() const {
  std::vector<std::string> damaged;
  if (zip_) {
    for (const auto& [name, entry] : zip_->entries()) {
      if (entry.is_plain && zip_crc(entry.data) != entry.crc) {
        damaged.push_back(name);
      }
    }
  }
  return damaged;
}

} // namespace tessera::runtime
