// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/io/posix_error.h"
#include "tessera/runtime/io/safetensors.h"
#include "tessera/runtime/io/safetensors_header.h"

namespace tessera::runtime {

namespace fs = std::filesystem;

namespace {

uint64_t little_endian(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | std::to_integer<uint64_t>(bytes[i]);
  }
  return value;
}

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
  // Each destructor then unmaps the mapping that it holds. Strings keep their
  // addresses when a vector is moved, so the views in index_ stay valid.
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
      "{}: there is no tensor '{}' among its {}{}",
      path_.string(),
      name,
      entries_.size(),
      nearest.empty() ? "; check that this is the right file"
                      : "; the nearest name is '" + nearest + "'");
}

void SafetensorsFile::map_file() {
  // Without O_NONBLOCK, opening a pipe would wait for its other end.
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
    ::close(fd); // The mapping keeps the file open.
  }
  TESSERA_CHECK(
      code == 0,
      "cannot open the safetensors file '{}': {}; {}",
      path_.string(),
      detail::errno_text(code),
      detail::errno_remedy(code));
}

void SafetensorsFile::read_header() {
  constexpr size_t kPrefix = detail::kSafetensorsPrefixBytes;
  const std::string where = path_.string() + ": ";
  TESSERA_CHECK(
      mapping_.size() >= kPrefix,
      "{}is not a safetensors file: it has {} bytes, but the header's length alone takes {}{}",
      where,
      mapping_.size(),
      kPrefix,
      detail::kSafetensorsRemedy);
  const uint64_t header_bytes = little_endian(mapping_.first(kPrefix));
  TESSERA_CHECK(
      header_bytes <= detail::kSafetensorsMaxHeaderBytes,
      "{}is not a safetensors file: its header would be {} bytes long, more than the {} that the format allows{}",
      where,
      header_bytes,
      detail::kSafetensorsMaxHeaderBytes,
      detail::kSafetensorsRemedy);
  TESSERA_CHECK(
      header_bytes <= mapping_.size() - kPrefix,
      "{}the header would be {} bytes long, but only {} bytes follow{}",
      where,
      header_bytes,
      mapping_.size() - kPrefix,
      detail::kSafetensorsRemedy);
  const auto header = mapping_.subspan(kPrefix, header_bytes);
  const auto data = mapping_.subspan(kPrefix + header_bytes);
  const std::string_view text(
      reinterpret_cast<const char*>(header.data()), header.size());
  auto parsed = detail::parse_safetensors_header(path_, text, data);
  entries_ = std::move(parsed.entries);
  metadata_ = std::move(parsed.metadata);
  for (size_t i = 0; i < entries_.size(); ++i) {
    index_.emplace(entries_[i].name, i);
  }
}

} // namespace tessera::runtime
