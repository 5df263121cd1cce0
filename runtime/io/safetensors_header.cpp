// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"

namespace tessera::runtime::detail {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// Converts one header field to an entry and formats its errors.
class EntryReader {
 public:
  EntryReader(
      const fs::path& path,
      const std::string& name,
      const json& fields,
      std::span<const std::byte> data)
      : where_(formatted("{}: tensor '{}': ", path.string(), name)),
        fields_(fields),
        data_(data) {}

  SafetensorsEntry read(const std::string& name) const {
    TESSERA_CHECK(
        fields_.is_object(),
        "{}is described by {}, not by an object{}",
        where_,
        show_json(fields_),
        kSafetensorsRemedy);
    SafetensorsEntry entry{name, dtype(), shape(), {}};
    const auto [begin, end] = offsets();
    const auto bytes = safetensors_bytes(entry.dtype, entry.shape);
    TESSERA_CHECK(
        bytes.has_value(),
        "{}shape {} needs more bytes than 64 bits can count{}",
        where_,
        show_json(fields_.at("shape")),
        kSafetensorsRemedy);
    TESSERA_CHECK(
        *bytes == end - begin,
        "{}shape {} of {} needs {} bytes, but data_offsets {} hold {}{}",
        where_,
        show_json(fields_.at("shape")),
        name_of(entry.dtype),
        *bytes,
        show_json(fields_.at("data_offsets")),
        end - begin,
        kSafetensorsRemedy);
    entry.data = data_.subspan(begin, end - begin);
    return entry;
  }

 private:
  const json& field(const char* key) const {
    const auto found = fields_.find(key);
    TESSERA_CHECK(
        found != fields_.end(),
        "{}has no '{}'{}",
        where_,
        key,
        kSafetensorsRemedy);
    return *found;
  }

  SafetensorsDtype dtype() const {
    const json& value = field("dtype");
    TESSERA_CHECK(
        value.is_string(),
        "{}dtype is {}, not a string{}",
        where_,
        show_json(value),
        kSafetensorsRemedy);
    const auto dtype = safetensors_dtype(value.get_ref<const std::string&>());
    TESSERA_CHECK(
        dtype.has_value(),
        "{}dtype {} is not supported; convert the tensor to a supported one, such as F32, BF16, F16 or I64",
        where_,
        show_json(value));
    return *dtype;
  }

  std::vector<int64_t> shape() const {
    const json& value = field("shape");
    TESSERA_CHECK(
        value.is_array(),
        "{}shape is {}, not an array{}",
        where_,
        show_json(value),
        kSafetensorsRemedy);
    std::vector<int64_t> shape;
    shape.reserve(value.size());
    for (const json& size : value) {
      TESSERA_CHECK(
          size.is_number_unsigned() && size.get<uint64_t>() <= INT64_MAX,
          "{}shape {} contains {}, which is not a size{}",
          where_,
          show_json(value),
          show_json(size),
          kSafetensorsRemedy);
      shape.push_back(size.get<int64_t>());
    }
    return shape;
  }

  std::pair<uint64_t, uint64_t> offsets() const {
    const json& value = field("data_offsets");
    TESSERA_CHECK(
        value.is_array() && value.size() == 2 &&
            value[0].is_number_unsigned() && value[1].is_number_unsigned(),
        "{}data_offsets are {}, not a pair of non-negative integers{}",
        where_,
        show_json(value),
        kSafetensorsRemedy);
    const auto begin = value[0].get<uint64_t>();
    const auto end = value[1].get<uint64_t>();
    TESSERA_CHECK(
        begin <= end,
        "{}data_offsets {} run backwards{}",
        where_,
        show_json(value),
        kSafetensorsRemedy);
    TESSERA_CHECK(
        end <= data_.size(),
        "{}data_offsets {} end beyond the file's {} bytes of data{}",
        where_,
        show_json(value),
        data_.size(),
        kSafetensorsRemedy);
    return {begin, end};
  }

  std::string where_;
  const json& fields_;
  std::span<const std::byte> data_;
};

} // namespace

SafetensorsHeader parse_safetensors_header(
    const fs::path& path,
    std::string_view text,
    std::span<const std::byte> data) {
  const std::string where = path.string() + ": ";
  TESSERA_CHECK(
      text.starts_with('{'),
      "{}the header starts with {} instead of '{{', so this is not a safetensors file{}",
      where,
      show_json(std::string(text.substr(0, 1))),
      kSafetensorsRemedy);
  const json fields = parse_json(text, where + "header");

  SafetensorsHeader header;
  for (const auto& [name, value] : fields.items()) {
    if (name != kSafetensorsMetadataKey) {
      header.entries.push_back(EntryReader(path, name, value, data).read(name));
      continue;
    }
    TESSERA_CHECK(
        value.is_object(),
        "{}__metadata__ is {}, not an object{}",
        where,
        show_json(value),
        kSafetensorsRemedy);
    for (const auto& [key, text_value] : value.items()) {
      TESSERA_CHECK(
          text_value.is_string(),
          "{}__metadata__ '{}' is {}, not a string{}",
          where,
          key,
          show_json(text_value),
          kSafetensorsRemedy);
      header.metadata[key] = text_value.get<std::string>();
    }
  }

  // The tensors must tile the data: no overlap, no gap, no remainder.
  std::sort(
      header.entries.begin(),
      header.entries.end(),
      [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
        return std::tuple(a.data.data(), a.data.size(), a.name) <
               std::tuple(b.data.data(), b.data.size(), b.name);
      });
  size_t expected = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    const auto begin = static_cast<size_t>(entry.data.data() - data.data());
    TESSERA_CHECK(
        begin == expected,
        "{}tensor '{}': starts at byte {} of the data, but {}{}{}",
        where,
        entry.name,
        begin,
        begin < expected ? "the tensor before it ends at "
                         : "nothing fills the bytes from ",
        expected,
        kSafetensorsRemedy);
    expected = begin + entry.data.size();
  }
  TESSERA_CHECK(
      expected == data.size(),
      "{}the tensors end at byte {} of the data, but the file has {}{}",
      where,
      expected,
      data.size(),
      kSafetensorsRemedy);
  return header;
}

} // namespace tessera::runtime::detail
