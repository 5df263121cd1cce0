// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/safetensors.h"
#include "tessera/runtime/io/safetensors_header.h"

namespace tessera::runtime {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

std::array<std::byte, detail::kSafetensorsPrefixBytes> little_endian(
    uint64_t value) {
  std::array<std::byte, detail::kSafetensorsPrefixBytes> bytes{};
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(value & 0xff);
    value >>= 8;
  }
  return bytes;
}

} // namespace

SafetensorsWriter::SafetensorsWriter(
    const fs::path& path,
    std::vector<SafetensorsSpec> specs,
    const std::map<std::string, std::string>& metadata)
    : file_(path) {
  std::sort(
      specs.begin(),
      specs.end(),
      [](const SafetensorsSpec& a, const SafetensorsSpec& b) {
        return std::tuple(-static_cast<int>(size_of(a.dtype)), a.name) <
               std::tuple(-static_cast<int>(size_of(b.dtype)), b.name);
      });
  ordered_json header = ordered_json::object();
  if (!metadata.empty()) {
    header[std::string(detail::kSafetensorsMetadataKey)] = metadata;
  }
  uint64_t end = 0;
  for (const SafetensorsSpec& spec : specs) {
    const std::string where =
        formatted("{}: tensor '{}': ", path.string(), spec.name);
    TESSERA_CHECK(
        spec.name != detail::kSafetensorsMetadataKey,
        "{}the format reserves this name; rename the tensor",
        where);
    for (const int64_t size : spec.shape) {
      TESSERA_CHECK(
          size >= 0, "{}a size is {}; sizes must not be negative", where, size);
    }
    const auto bytes = detail::safetensors_bytes(spec.dtype, spec.shape);
    TESSERA_CHECK(
        bytes.has_value() && *bytes <= INT64_MAX - end,
        "{}the file would have more bytes than 64 bits can count; check the shape",
        where);
    const bool is_new =
        slots_.emplace(spec.name, Slot{.offset = end, .bytes = *bytes}).second;
    TESSERA_CHECK(
        is_new, "{}is given twice; give each tensor its own name", where);
    header[spec.name] = {
        {"dtype", name_of(spec.dtype)},
        {"shape", spec.shape},
        {"data_offsets", {end, end + *bytes}}};
    end += *bytes;
  }

  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    TESSERA_FAIL(
        "{}: a tensor name or metadata text is not valid UTF-8, which JSON requires; rename it",
        path.string());
  }
  // Pads with spaces so that the data starts at a multiple of eight bytes.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  TESSERA_CHECK(
      text.size() <= detail::kSafetensorsMaxHeaderBytes,
      "{}: the header would be {} bytes long, more than the {} that the format allows; split the tensors across several files",
      path.string(),
      text.size(),
      detail::kSafetensorsMaxHeaderBytes);
  const uint64_t data_begin = detail::kSafetensorsPrefixBytes + text.size();
  for (auto& [name, slot] : slots_) {
    slot.offset += data_begin;
  }
  file_.reserve(data_begin + end);
  file_.write_at(0, little_endian(text.size()));
  file_.write_at(
      detail::kSafetensorsPrefixBytes, std::as_bytes(std::span(text)));
}

void SafetensorsWriter::write(
    std::string_view name,
    std::span<const std::byte> data) {
  const auto found = slots_.find(name);
  TESSERA_CHECK(
      found != slots_.end(),
      "{}: tensor '{}' was not declared; list it when creating the writer",
      file_.path().string(),
      name);
  Slot& slot = found->second;
  TESSERA_CHECK(
      data.size() == slot.bytes,
      "{}: tensor '{}' got {} bytes; its dtype and shape need {}",
      file_.path().string(),
      name,
      data.size(),
      slot.bytes);
  TESSERA_CHECK(
      !slot.written,
      "{}: tensor '{}' is written twice; write each tensor once",
      file_.path().string(),
      name);
  file_.write_at(slot.offset, data);
  slot.written = true;
}

void SafetensorsWriter::commit() {
  for (const auto& [name, slot] : slots_) {
    TESSERA_CHECK(
        slot.written || slot.bytes == 0,
        "{}: tensor '{}' was never written; write it before commit()",
        file_.path().string(),
        name);
  }
  file_.commit();
}

} // namespace tessera::runtime
