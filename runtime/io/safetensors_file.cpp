// SPDX-License-Identifier: Apache-2.0

#include <utility>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"
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
  file.file_ = MappedFile(path, "safetensors file");
  file.read_header();
  return file;
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

void SafetensorsFile::read_header() {
  constexpr size_t kPrefix = detail::kSafetensorsPrefixBytes;
  const std::string where = path_.string() + ": ";
  const std::span<const std::byte> mapping = file_.bytes();
  TESSERA_CHECK(
      mapping.size() >= kPrefix,
      "{}is not a safetensors file: it has {} bytes, but the header's length alone takes {}{}",
      where,
      mapping.size(),
      kPrefix,
      detail::kSafetensorsRemedy);
  const uint64_t header_bytes = little_endian(mapping.first(kPrefix));
  TESSERA_CHECK(
      header_bytes <= detail::kSafetensorsMaxHeaderBytes,
      "{}is not a safetensors file: its header would be {} bytes long, more than the {} that the format allows{}",
      where,
      header_bytes,
      detail::kSafetensorsMaxHeaderBytes,
      detail::kSafetensorsRemedy);
  TESSERA_CHECK(
      header_bytes <= mapping.size() - kPrefix,
      "{}the header would be {} bytes long, but only {} bytes follow{}",
      where,
      header_bytes,
      mapping.size() - kPrefix,
      detail::kSafetensorsRemedy);
  const auto header = mapping.subspan(kPrefix, header_bytes);
  const auto data = mapping.subspan(kPrefix + header_bytes);
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
