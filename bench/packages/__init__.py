"""Find and download package files by digest, from where a machine's own pip and apt look; runs on nodes.

errors         the errors that a download may raise
pip_settings   indexes, folders of links, proxy and certificates of pip's configuration
apt_sources    the mirrors in apt's lists of sources
deb_file       reads the tars in a Debian package
connection     opens URLs with the settings' proxy, certificates and logins
package_index  the files that indexes, folders of links and mirrors offer of a package
download       fetches files by digest; continues a broken download

Imports the standard library alone, and runs on Python 3.9: `bench push` sends this folder to nodes, for the
assembly of images and for the installation of environments. Others call `download.fetch_all` and the methods
of `package_index.PackageIndex`.
"""
