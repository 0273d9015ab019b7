// A login link carries its code behind the #, which no browser sends: here it becomes a form that is sent once.

const form = document.getElementById("login");
const code = location.hash.slice(1);
if (code) {
  history.replaceState(null, "", location.pathname + location.search);
  form.elements.code.value = code;
  form.submit();
}
