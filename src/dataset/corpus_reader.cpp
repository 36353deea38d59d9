#include <cstring>
#include <nlohmann/json.hpp>

#include "hat/core/error.hpp"
#include "hat/dataset/corpus.hpp"
#include "hat/io/text_reader.hpp"

namespace hat {

namespace {
/// Finds separator lines in text that comes in pieces. Of a line it keeps no more than the separator's length: what
/// cannot be the separator any more goes on to the sink at once.
class LineSeparator {
 public:
  LineSeparator(std::string separator, DocumentSink& sink) : separator_(std::move(separator)), sink_(sink) {}

  void add(std::string_view text) {
    while (!text.empty()) {
      const size_t newline = text.find('\n');
      if (!undecided_) {  // the rest of an ordinary line
        const size_t length = newline == std::string_view::npos ? text.size() : newline + 1;
        sink_.add_text(text.substr(0, length));
        document_open_ = true;
        undecided_ = newline != std::string_view::npos;
        text.remove_prefix(length);
        continue;
      }
      const size_t room = separator_.size() + 2 - line_.size();  // "\r\n" may follow the separator
      const size_t length = std::min(newline == std::string_view::npos ? text.size() : newline + 1, room);
      line_.append(text.substr(0, length));
      text.remove_prefix(length);
      if (line_.ends_with('\n')) {
        end_line();
      } else if (line_.size() == separator_.size() + 2) {
        sink_.add_text(std::exchange(line_, {}));
        document_open_ = true;
        undecided_ = false;
      }
    }
  }

  /// A file that ends with a separator has no further, empty document behind it.
  void finish() {
    end_line();
    if (document_open_ || !separator_seen_) sink_.end_document();
  }

 private:
  void end_line() {
    std::string_view content = line_;
    if (content.ends_with('\n')) content.remove_suffix(1);
    if (content.ends_with('\r')) content.remove_suffix(1);
    if (line_.empty()) return;
    if (content == separator_) {
      sink_.end_document();
      separator_seen_ = true;
      document_open_ = false;
    } else {
      sink_.add_text(line_);
      document_open_ = true;
    }
    line_.clear();
  }

  std::string separator_;
  DocumentSink& sink_;
  std::string line_;
  bool undecided_ = true;       // the line so far may still be the separator
  bool document_open_ = false;  // there was something since the last separator
  bool separator_seen_ = false;
};

void read_text(TextReader& reader, const CorpusOptions& options, DocumentSink& sink,
               const std::function<void(int64_t)>& progress) {
  if (!options.separator) {
    for (auto piece = reader.next(); !piece.empty(); piece = reader.next()) {
      sink.add_text({piece.data(), piece.size()});
      progress(reader.position());
    }
    sink.end_document();
    return;
  }
  LineSeparator separator(*options.separator, sink);
  for (auto piece = reader.next(); !piece.empty(); piece = reader.next()) {
    separator.add({piece.data(), piece.size()});
    progress(reader.position());
  }
  separator.finish();
}

/// The reason without nlohmann's prefix "[json.exception.parse_error.101] ", on one line.
std::string json_reason(const std::exception& error) {
  std::string text = error.what();
  if (const size_t end = text.find("] "); text.starts_with('[') && end != std::string::npos)
    text = text.substr(end + 2);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return text;
}

std::string text_of_line(const std::string& line, const std::string& key, const std::string& where) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    throw InputError(where, "", fmt::format("is not valid JSON: {}", json_reason(error)));
  }
  if (!object.is_object()) throw InputError(where, "", "is not a JSON object");
  const auto text = object.find(key);
  if (text == object.end()) throw InputError(where, key, "the object has no such key (see --text-key)");
  if (!text->is_string()) throw InputError(where, key, fmt::format("is a {}, not a string", text->type_name()));
  return text->get<std::string>();
}

void read_jsonl(const CorpusFile& file, TextReader& reader, const CorpusOptions& options, DocumentSink& sink,
                const std::function<void(int64_t)>& progress) {
  std::string line;
  for (int64_t number = 1; reader.next_line(line); ++number) {
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    sink.add_text(text_of_line(line, options.text_key, fmt::format("{}:{}", file.path.string(), number)));
    sink.end_document();
    if (number % 256 == 0) progress(reader.position());
  }
}
}  // namespace

void read_corpus_file(const CorpusFile& file, const CorpusOptions& options, DocumentSink& sink,
                      const std::function<void(int64_t)>& progress) {
  TextReader reader(file.path);
  if (file.is_jsonl) {
    read_jsonl(file, reader, options, sink, progress);
  } else {
    read_text(reader, options, sink, progress);
  }
}

}  // namespace hat
