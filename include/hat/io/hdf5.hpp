#pragma once
#include <hdf5.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace hat::hdf5 {

/// Held during every HDF5 call. The HDF5 of most systems is not thread safe, so one recursive mutex guards the whole
/// process; taking it also switches off HDF5's own printing of errors on this thread.
class LibraryLock {
 public:
  LibraryLock();

 private:
  std::lock_guard<std::recursive_mutex> guard_;
};

/// Owns one HDF5 id. Move-only; `Close` is the function of the C library that gives the id back.
template <herr_t (*Close)(hid_t)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(hid_t id) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      reset();
      id_ = std::exchange(other.id_, H5I_INVALID_HID);
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { reset(); }

  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }
  hid_t release() { return std::exchange(id_, H5I_INVALID_HID); }
  void reset() noexcept {
    if (id_ < 0) return;
    const LibraryLock lock;
    Close(release());
  }

 private:
  hid_t id_ = H5I_INVALID_HID;
};

/// Types of array elements. Stored little-endian whatever the machine.
enum class Element : uint8_t { uint8, uint16, uint32, uint64, int32, int64, float32, float64 };
size_t element_size(Element element);

template <class T>
struct ElementOf;
// clang-format off
template <> struct ElementOf<uint8_t> { static constexpr Element value = Element::uint8; };
template <> struct ElementOf<uint16_t> { static constexpr Element value = Element::uint16; };
template <> struct ElementOf<uint32_t> { static constexpr Element value = Element::uint32; };
template <> struct ElementOf<uint64_t> { static constexpr Element value = Element::uint64; };
template <> struct ElementOf<int32_t> { static constexpr Element value = Element::int32; };
template <> struct ElementOf<int64_t> { static constexpr Element value = Element::int64; };
template <> struct ElementOf<float> { static constexpr Element value = Element::float32; };
template <> struct ElementOf<double> { static constexpr Element value = Element::float64; };
// clang-format on

/// A group or an array: something in a file that has a name and attributes. Failures while reading throw InputError
/// (the file is what is wrong), failures while writing throw Error; both name file, object and HDF5's own reason.
class Object {
 public:
  const std::string& file() const { return file_; }
  const std::string& name() const { return name_; }

  bool has_attribute(const std::string& key) const;
  void set_text(const std::string& key, const std::string& value);
  std::string text(const std::string& key) const;

  template <class T>
  void set_number(const std::string& key, T value) {
    set_raw(key, ElementOf<T>::value, &value);
  }
  template <class T>
  T number(const std::string& key) const {
    T value{};
    get_raw(key, ElementOf<T>::value, &value);
    return value;
  }

 protected:
  Object(hid_t id, std::string file, std::string name, bool writable)
      : handle_(id), file_(std::move(file)), name_(std::move(name)), writable_(writable) {}
  /// Throws with HDF5's pending error text.
  [[noreturn]] void fail(const std::string& action) const;
  [[noreturn]] void fail_attribute(const std::string& key, const std::string& reason) const;

  Handle<H5Oclose> handle_;
  std::string file_;
  std::string name_;
  bool writable_ = false;

 private:
  void set_raw(const std::string& key, Element element, const void* value);
  void get_raw(const std::string& key, Element element, void* value) const;
};

/// An array of numbers, (rows) or (rows, columns). Rows and columns are 64-bit everywhere.
class Array : public Object {
 public:
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }  ///< 1 for a vector
  bool is_vector() const { return is_vector_; }
  Element element() const { return element_; }

  /// Rows [first_row, first_row + rows). HDF5 converts between the stored type and T.
  template <class T>
  void read(int64_t first_row, int64_t rows, T* values) const {
    read_raw(first_row, rows, ElementOf<T>::value, values);
  }
  template <class T>
  void write(int64_t first_row, int64_t rows, const T* values) {
    write_raw(first_row, rows, ElementOf<T>::value, values);
  }
  /// Adds rows at the end. Only for arrays created as extendible.
  template <class T>
  void append(int64_t rows, const T* values) {
    resize(rows_ + rows);
    write_raw(rows_ - rows, rows, ElementOf<T>::value, values);
  }
  /// New number of rows of an extendible array. Rows never written read as zero and take no space.
  void resize(int64_t rows);

  void read_raw(int64_t first_row, int64_t rows, Element element, void* values) const;
  void write_raw(int64_t first_row, int64_t rows, Element element, const void* values);

 private:
  friend class Group;
  using Object::Object;
  void load_shape();
  int64_t rows_ = 0;
  int64_t columns_ = 1;
  bool is_vector_ = true;
  Element element_ = Element::float32;
};

/// A column of a table. Every one is 8 bytes wide: int64, uint64 or float64.
struct TableColumn {
  std::string name;
  Element element = Element::int64;
};

/// Rows of numbers under names (an array of a compound type) that can grow: h5dump and h5py show its columns by name.
class Table : public Object {
 public:
  int64_t rows() const { return rows_; }
  /// `words`: rows one after the other, 8 bytes a column, as the columns were given.
  void append(int64_t rows, const void* words);
  void read(int64_t first_row, int64_t rows, void* words) const;

 private:
  friend class Group;
  using Object::Object;
  void load_shape(const std::vector<TableColumn>& columns);
  Handle<H5Tclose> type_;
  int64_t rows_ = 0;
};

/// How the values of an array that can grow are stored: `deflate` packs bytes of equal significance together, and
/// deflates them at the fastest level. HDF5's own filters, so every program reads both.
enum class Storage { plain, deflate };

struct ArrayShape {
  int64_t rows = 0;
  int64_t columns = 1;
  bool is_vector = true;
};

/// One piece of a virtual array: rows [first_row, first_row + rows) of it are the whole of `object` in `file`.
struct VirtualPart {
  std::string file;  ///< relative names are looked for beside the file that holds the virtual array
  std::string object;
  int64_t first_row = 0;
  int64_t rows = 0;
};

class Group : public Object {
 public:
  /// Names may be paths; missing groups in between are made.
  Group create_group(const std::string& name);
  Array create_array(const std::string& name, Element element, ArrayShape shape);
  /// A vector or matrix that can grow, in chunks of `chunk_rows` rows and `chunk_columns` columns (0: all of them).
  Array create_extendible(const std::string& name, Element element, ArrayShape shape, int64_t chunk_rows,
                          int64_t chunk_columns = 0, Storage storage = Storage::plain);
  Table create_table(const std::string& name, const std::vector<TableColumn>& columns, int64_t chunk_rows);
  /// A float32 array whose rows lie in other files. Where a file is missing it reads as NaN, without an error.
  Array create_virtual(const std::string& name, ArrayShape shape, const std::vector<VirtualPart>& parts);
  void write_strings(const std::string& name, const std::vector<std::string>& values);

  template <class T>
  void write_vector(const std::string& name, const std::vector<T>& values) {
    auto array = create_array(name, ElementOf<T>::value, {static_cast<int64_t>(values.size()), 1, true});
    array.write(0, array.rows(), values.data());
  }
  template <class T>
  std::vector<T> read_vector(const std::string& name) const {
    const auto array = open_array(name);
    std::vector<T> values(static_cast<size_t>(array.rows() * array.columns()));
    array.read(0, array.rows(), values.data());
    return values;
  }

  bool has(const std::string& name) const;
  Group open_group(const std::string& name) const;
  Array open_array(const std::string& name) const;
  /// Throws InputError unless it is a table of these columns, in this order.
  Table open_table(const std::string& name, const std::vector<TableColumn>& columns) const;
  std::vector<std::string> read_strings(const std::string& name) const;
  std::vector<std::string> names() const;  ///< of the direct children, sorted
  bool is_group(const std::string& child) const;

 private:
  friend class File;
  using Object::Object;
  std::string child_name(const std::string& name) const;
  Array create(const std::string& name, Element element, hid_t space, hid_t creation);
};

/// An HDF5 file, either being written or read only.
class File {
 public:
  /// Creates (or truncates) `path`. Give a temporary name; see `rename_durably`.
  static File create(const std::filesystem::path& path);
  /// Throws InputError in plain words when the file is missing, a folder, empty, not HDF5, truncated, unfinished.
  static File open(const std::filesystem::path& path);
  /// Opens a file to change it; throws like `open`. Whoever is killed meanwhile leaves it damaged: give a copy.
  static File open_to_write(const std::filesystem::path& path);
  /// Opens a file that is being written by `start_appending`, or whose writer was killed at that: shows what was
  /// flushed last. Throws like `open`.
  static File open_appended(const std::filesystem::path& path);
  /// Takes back the mark of a writer that was killed, because of which programs that know nothing of appending (h5dump)
  /// refuse the file. Only when nobody writes it any more.
  static void clear_writer(const std::filesystem::path& path);

  /// From now on arrays and tables that exist may grow, and nothing else may change (HDF5's single writer, many
  /// readers): whatever was flushed can be read meanwhile, and after the writer was killed.
  void start_appending();
  /// What was written so far reaches the operating system, in an order that never shows half of it.
  void flush();

  Group root() const;
  const std::string& path() const { return path_; }
  /// Writes everything out, closes and makes the file durable (fsync). No object of the file may be alive. Without it
  /// the destructor just closes: nothing is promised about a file written that way.
  void close();

 private:
  File(hid_t id, std::string path, bool writable) : handle_(id), path_(std::move(path)), writable_(writable) {}
  Handle<H5Fclose> handle_;
  std::string path_;
  bool writable_ = false;
};

/// Version of the HDF5 library in use, "1.10.8".
std::string library_version();

}  // namespace hat::hdf5
