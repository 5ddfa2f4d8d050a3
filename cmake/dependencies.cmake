# What each library is for, and why this one: docs/dependencies.md. `./dev deps` installs them.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
set(BLA_VENDOR OpenBLAS)
find_package(BLAS REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
# The serial build: it is thread-safe in Debian, the one for MPI is not.
find_package(PkgConfig REQUIRED)
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET hdf5-serial)
