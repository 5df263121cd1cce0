// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/hub/hub_listing.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/json_value.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <regex>

namespace tessera::runtime {

namespace {

namespace fs = std::filesystem;

constexpr size_t kSha1Digits = 40;
constexpr size_t kSha256Digits = 64;

bool is_hash(std::string_view text, size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool stays_inside(const std::string& text) {
  const fs::path path(text);
  return !text.empty() && path.is_relative() &&
         text.find('\0') == std::string::npos &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) {
           return part == ".." || part == "." || part.empty();
         });
}

/// With all but letters, digits and "-_.~" as %XX; keeps `kept`.
std::string percent_encoded(std::string_view text, std::string_view kept) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~";
  std::string encoded;
  for (const char c : text) {
    if (kPlain.find(c) != std::string_view::npos ||
        kept.find(c) != std::string_view::npos) {
      encoded += c;
    } else {
      encoded += formatted("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

HubFile read_file(const JsonValue& entry) {
  HubFile file;
  file.path = entry.require<std::string>("rfilename");
  if (!stays_inside(file.path)) {
    entry.at("rfilename").fail("a path inside the repository");
  }
  const auto large = entry.find_set("lfs");
  const JsonValue& sized = large ? *large : entry;
  file.bytes = sized.at("size").integer();
  file.kind = large ? ContentHash::kSha256 : ContentHash::kGitBlob;
  const char* const key = large ? "sha256" : "blobId";
  file.hash = sized.require<std::string>(key);
  if (!is_hash(file.hash, large ? kSha256Digits : kSha1Digits)) {
    sized.at(key).fail("a hash in hexadecimal digits");
  }
  return file;
}

bool has_suffix(
    const std::string& name,
    std::initializer_list<std::string_view> suffixes) {
  return std::any_of(
      suffixes.begin(), suffixes.end(), [&name](std::string_view suffix) {
        return name.ends_with(suffix);
      });
}

/// How weights may be named, the first first; with parts as transformers
/// writes them.
const std::array<std::regex, 5>& weight_names() {
  static const std::array<std::regex, 5> names{
      std::regex(R"(model(-\d+-of-\d+)?\.safetensors(\.index\.json)?)"),
      std::regex(R"(pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?)"),
      std::regex(R"(pytorch_model\.pt)"),
      std::regex(R"(adapter_model\.safetensors)"),
      std::regex(R"(adapter_model\.bin)")};
  return names;
}

bool is_weight_index(const std::string& name) {
  return has_suffix(
      name,
      {".safetensors.index.json",
       ".bin.index.json",
       ".msgpack.index.json",
       ".h5.index.json"});
}

/// Configuration, tokenizer and templates.
bool describes_model(const std::string& name) {
  return !is_weight_index(name) && has_suffix(
                                       name,
                                       {".json",
                                        ".jinja",
                                        ".txt",
                                        ".model",
                                        ".tiktoken",
                                        ".spm",
                                        ".vocab",
                                        ".bpe"});
}

} // namespace

bool is_commit(std::string_view revision) {
  return is_hash(revision, kSha1Digits);
}

HubListing read_listing(std::string_view json, const std::string& place) {
  const JsonValue root =
      json_object(parse_json(std::string(json), place), place);
  HubListing listing;
  listing.commit = root.require<std::string>("sha");
  if (!is_commit(listing.commit)) {
    root.at("sha").fail("a commit in hexadecimal digits");
  }
  for (const JsonValue& entry : root.at("siblings").elements()) {
    listing.files.push_back(read_file(entry));
  }
  return listing;
}

std::string listing_url(const std::string& endpoint, const HubName& name) {
  return formatted(
      "{}/api/{}/{}/revision/{}?blobs=true",
      endpoint,
      name.is_data_set ? "datasets" : "models",
      name.repository,
      percent_encoded(name.revision, ""));
}

std::string file_url(
    const std::string& endpoint,
    const HubName& name,
    const std::string& commit,
    const std::string& path) {
  return formatted(
      "{}/{}{}/resolve/{}/{}",
      endpoint,
      name.is_data_set ? "datasets/" : "",
      name.repository,
      commit,
      percent_encoded(path, "/"));
}

std::vector<HubFile> model_files(
    const HubListing& listing,
    const std::string& folder,
    bool weights) {
  const fs::path parent(folder);
  const fs::path templates = parent / "additional_chat_templates";
  std::vector<HubFile> inside;
  std::vector<HubFile> chosen;
  for (const HubFile& file : listing.files) {
    const fs::path at = fs::path(file.path).parent_path();
    if (at == parent) {
      inside.push_back(file);
    } else if (at == templates && file.path.ends_with(".jinja")) {
      chosen.push_back(file);
    }
  }
  const auto name_of = [](const HubFile& file) {
    return fs::path(file.path).filename().string();
  };
  for (const HubFile& file : inside) {
    if (describes_model(name_of(file))) {
      chosen.push_back(file);
    }
  }
  if (!weights) {
    return chosen;
  }
  for (const std::regex& pattern : weight_names()) {
    const size_t before = chosen.size();
    for (const HubFile& file : inside) {
      if (std::regex_match(name_of(file), pattern)) {
        chosen.push_back(file);
      }
    }
    if (chosen.size() > before) {
      break;
    }
  }
  return chosen;
}

} // namespace tessera::runtime
