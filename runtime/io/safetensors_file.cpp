// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/io/posix_error.h"
#include "tessera/runtime/io/safetensors.h"
#include "tessera/runtime/io/safetensors_header.h"

namespace tessera {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kRemedy =
    "; the file is damaged or was not written completely: fetch or write it "
    "again";

uint64_t little_endian(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | std::to_integer<uint64_t>(bytes[i]);
  }
  return value;
}

// Turns one header field into an entry; holds the words for its errors.
class EntryReader {
 public:
  EntryReader(
      const fs::path& path,
      const std::string& name,
      const json& fields,
      std::span<const std::byte> data)
      : where_(detail::concat(path.string(), ": tensor '", name, "': ")),
        fields_(fields),
        data_(data) {}

  SafetensorsEntry read(const std::string& name) const {
    TESSERA_CHECK(
        fields_.is_object(),
        where_,
        "is described by ",
        show_json(fields_),
        ", not by an object",
        kRemedy);
    SafetensorsEntry entry{name, dtype(), shape(), {}};
    const auto [begin, end] = offsets();
    const auto bytes = detail::safetensors_bytes(entry.dtype, entry.shape);
    TESSERA_CHECK(
        bytes.has_value(),
        where_,
        "shape ",
        show_json(fields_.at("shape")),
        " has more bytes than 64 bits can count",
        kRemedy);
    TESSERA_CHECK(
        *bytes == end - begin,
        where_,
        "shape ",
        show_json(fields_.at("shape")),
        " of ",
        name_of(entry.dtype),
        " needs ",
        *bytes,
        " bytes, but data_offsets ",
        show_json(fields_.at("data_offsets")),
        " hold ",
        end - begin,
        kRemedy);
    entry.data = data_.subspan(begin, end - begin);
    return entry;
  }

 private:
  const json& field(const char* key) const {
    const auto found = fields_.find(key);
    TESSERA_CHECK(
        found != fields_.end(), where_, "has no '", key, "'", kRemedy);
    return *found;
  }

  SafetensorsDtype dtype() const {
    const json& value = field("dtype");
    TESSERA_CHECK(
        value.is_string(),
        where_,
        "dtype is ",
        show_json(value),
        ", not a string",
        kRemedy);
    const auto dtype = safetensors_dtype(value.get_ref<const std::string&>());
    TESSERA_CHECK(
        dtype.has_value(),
        where_,
        "dtype ",
        show_json(value),
        " is not supported; convert the tensor to a supported one, such as "
        "F32, BF16, F16 or I64");
    return *dtype;
  }

  std::vector<int64_t> shape() const {
    const json& value = field("shape");
    TESSERA_CHECK(
        value.is_array(),
        where_,
        "shape is ",
        show_json(value),
        ", not an array",
        kRemedy);
    std::vector<int64_t> shape;
    shape.reserve(value.size());
    for (const json& size : value) {
      TESSERA_CHECK(
          size.is_number_unsigned() && size.get<uint64_t>() <= INT64_MAX,
          where_,
          "shape ",
          show_json(value),
          " holds ",
          show_json(size),
          ", which is not a size",
          kRemedy);
      shape.push_back(size.get<int64_t>());
    }
    return shape;
  }

  std::pair<uint64_t, uint64_t> offsets() const {
    const json& value = field("data_offsets");
    TESSERA_CHECK(
        value.is_array() && value.size() == 2 &&
            value[0].is_number_unsigned() && value[1].is_number_unsigned(),
        where_,
        "data_offsets are ",
        show_json(value),
        ", not a pair of non-negative integers",
        kRemedy);
    const auto begin = value[0].get<uint64_t>();
    const auto end = value[1].get<uint64_t>();
    TESSERA_CHECK(
        begin <= end,
        where_,
        "data_offsets ",
        show_json(value),
        " run backwards",
        kRemedy);
    TESSERA_CHECK(
        end <= data_.size(),
        where_,
        "data_offsets ",
        show_json(value),
        " end behind the file's ",
        data_.size(),
        " bytes of data",
        kRemedy);
    return {begin, end};
  }

  std::string where_;
  const json& fields_;
  std::span<const std::byte> data_;
};

} // namespace

SafetensorsFile SafetensorsFile::open(const fs::path& path) {
  SafetensorsFile file;
  file.path_ = path;
  file.map_file();
  file.read_header();
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (!mapping_.empty()) {
    ::munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
  }
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept {
  *this = std::move(other);
}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  // Each side's destructor then unmaps what it ends up with. Strings keep
  // their place when a vector moves, so the views in index_ stay valid.
  std::swap(path_, other.path_);
  std::swap(mapping_, other.mapping_);
  std::swap(entries_, other.entries_);
  std::swap(index_, other.index_);
  std::swap(metadata_, other.metadata_);
  return *this;
}

bool SafetensorsFile::contains(std::string_view name) const {
  return index_.contains(name);
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) {
    return entries_[found->second];
  }
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : entries_) {
    names.push_back(entry.name);
  }
  const std::string nearest = nearest_name(name, names);
  TESSERA_FAIL(
      path_.string(),
      ": has no tensor '",
      name,
      "' among its ",
      entries_.size(),
      nearest.empty() ? "; check that this is the right file"
                      : "; the nearest name is '" + nearest + "'");
}

void SafetensorsFile::map_file() {
  // Opening a pipe would otherwise wait for its other end.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  int code = 0;
  if (fd < 0 || ::fstat(fd, &status) != 0) {
    code = errno;
  } else if (!S_ISREG(status.st_mode)) {
    code = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  } else if (status.st_size > 0) {
    const auto bytes = static_cast<size_t>(status.st_size);
    void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) {
      code = errno;
    } else {
      mapping_ = {static_cast<const std::byte*>(at), bytes};
    }
  }
  if (fd >= 0) {
    ::close(fd); // The mapping keeps the file.
  }
  TESSERA_CHECK(
      code == 0,
      "cannot open the safetensors file '",
      path_.string(),
      "': ",
      detail::errno_text(code),
      "; ",
      detail::errno_remedy(code));
}

void SafetensorsFile::read_header() {
  constexpr size_t kPrefix = detail::kSafetensorsPrefixBytes;
  const std::string where = path_.string() + ": ";
  TESSERA_CHECK(
      mapping_.size() >= kPrefix,
      where,
      "is not a safetensors file: it has ",
      mapping_.size(),
      " bytes, and the header's length alone takes ",
      kPrefix,
      kRemedy);
  const uint64_t header_bytes = little_endian(mapping_.first(kPrefix));
  TESSERA_CHECK(
      header_bytes <= detail::kSafetensorsMaxHeaderBytes,
      where,
      "is not a safetensors file: its header would be ",
      header_bytes,
      " bytes long, more than the ",
      detail::kSafetensorsMaxHeaderBytes,
      " that the format allows",
      kRemedy);
  TESSERA_CHECK(
      header_bytes <= mapping_.size() - kPrefix,
      where,
      "the header would be ",
      header_bytes,
      " bytes long, but only ",
      mapping_.size() - kPrefix,
      " bytes follow",
      kRemedy);
  const auto header = mapping_.subspan(kPrefix, header_bytes);
  const auto data = mapping_.subspan(kPrefix + header_bytes);
  const std::string_view text(
      reinterpret_cast<const char*>(header.data()), header.size());
  TESSERA_CHECK(
      text.starts_with('{'),
      where,
      "the header starts with ",
      show_json(std::string(text.substr(0, 1))),
      " and not with '{', so this is not a safetensors file",
      kRemedy);
  const json fields = parse_json(text, where + "header");

  for (const auto& [name, value] : fields.items()) {
    if (name != detail::kSafetensorsMetadataKey) {
      entries_.push_back(EntryReader(path_, name, value, data).read(name));
      continue;
    }
    TESSERA_CHECK(
        value.is_object(),
        where,
        "__metadata__ is ",
        show_json(value),
        ", not an object",
        kRemedy);
    for (const auto& [key, text_value] : value.items()) {
      TESSERA_CHECK(
          text_value.is_string(),
          where,
          "__metadata__ '",
          key,
          "' is ",
          show_json(text_value),
          ", not a string",
          kRemedy);
      metadata_[key] = text_value.get<std::string>();
    }
  }

  // The tensors must tile the data: no overlap, no hole, nothing left over.
  std::sort(
      entries_.begin(),
      entries_.end(),
      [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
        return std::tuple(a.data.data(), a.data.size(), a.name) <
               std::tuple(b.data.data(), b.data.size(), b.name);
      });
  size_t expected = 0;
  for (const SafetensorsEntry& entry : entries_) {
    const auto begin = static_cast<size_t>(entry.data.data() - data.data());
    TESSERA_CHECK(
        begin == expected,
        where,
        "tensor '",
        entry.name,
        "': starts at byte ",
        begin,
        " of the data, where ",
        begin < expected ? "the tensor before it ends at "
                         : "nothing fills the bytes from ",
        expected,
        kRemedy);
    expected = begin + entry.data.size();
  }
  TESSERA_CHECK(
      expected == data.size(),
      where,
      "the tensors end at byte ",
      expected,
      " of the data, but the file has ",
      data.size(),
      kRemedy);

  for (size_t i = 0; i < entries_.size(); ++i) {
    index_.emplace(entries_[i].name, i);
  }
}

} // namespace tessera
